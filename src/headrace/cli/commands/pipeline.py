"""`headrace pipeline`: how the pipelines of a workspace stand, and what they would do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import headrace as hr
from headrace.cli.commands.dead_letter import JobArgument
from headrace.cli.options.completion import complete_job
from headrace.cli.options.workspace_options import on_workspace
from headrace.cli.render.output import (
    JsonOption,
    YesOption,
    as_example,
    confirm,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from headrace.cli.render.units import counted, format_cost, format_size
from headrace.errors import NotFoundError

if TYPE_CHECKING:
    from headrace.pipeline.run.job_plan import JobPlan
    from headrace.pipeline.status.garbage import Garbage
    from headrace.pipeline.status.job_catalog import JobDescription
    from headrace.pipeline.status.job_status import JobStatus

app = typer.Typer(
    no_args_is_help=True, help="See how pipelines stand and what they would do, and free space."
)


# -- status --------------------------------------------------------------------------------------


@app.command(epilog=as_example("headrace pipeline status captions"))
@on_workspace
def status(
    ws: hr.Workspace,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="The name of the job. Default: all.",
            show_default=False,
            autocompletion=complete_job,
        ),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Show how the last run of every job stands or ended; of one job, its stages.

    Units count over all runs, everything else over the last one. A job whose process was killed is
    shown as killed: run it again, and it goes on.
    """
    from headrace.cli.render.pipeline_display import (
        described,
        stage_columns,
        stage_rows,
        summary,
    )
    from headrace.pipeline.status.job_catalog import job_record, list_statuses
    from headrace.pipeline.status.job_status import read_status

    if not name:
        found = list_statuses(ws)
        if json:
            print_json([described(each) for each in found])
            return
        print_table(map(_job_row, found), ("job", "outcome", "since", "seen", "cost", "what"))
        return
    job_record(ws, name)
    one = read_status(ws, name)
    if json:
        print_json(described(one))
        return
    print_line(f"{name}: {summary(one)}")
    columns = stage_columns(one)
    print_table(stage_rows(one), columns, numbers=columns[1:])


def _job_row(status: JobStatus) -> tuple[object, ...]:
    from headrace.cli.render.pipeline_display import reason_and_figures

    what = "; ".join(reason_and_figures(status))
    times = (_time(status.began), _time(status.seen))
    return (status.job, status.outcome, *times, format_cost(status.cost_in_all), what)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


# -- plan ----------------------------------------------------------------------------------------


@app.command(epilog=as_example("headrace pipeline plan captions.py"))
def plan(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python file that defines pipelines.")
    ],
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="The pipeline. Default: all.", show_default=False),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Show what a run would do before anything is paid: units, rows, calls, cost, what has changed.

    Calls and cost are those of all rows of the source, if no stage drops or adds any. Results in
    the ledger are not paid again. Changes nothing.
    """
    from headrace.pipeline.pipeline_file import choose_pipelines, load_pipelines

    chosen = choose_pipelines(load_pipelines(file), [name] if name else [])
    plans = [each.plan() for each in chosen]
    if json:
        print_json([msgspec.to_builtins(each) for each in plans])
        return
    for number, each in enumerate(plans):
        if number:
            print_line("")
        _print_plan(each)


def _print_plan(plan: JobPlan) -> None:
    rows = "unknown before files are read" if plan.rows is None else f"{plan.rows:,}"
    costs = [each.cost_max for each in plan.stages if each.expensive]
    fields: dict[str, object] = {
        "job": plan.job,
        "run": "from scratch" if plan.is_new else "goes on where it was",
        "units": f"{plan.units:,}",
        "rows": rows,
    }
    if costs:
        known = [each for each in costs if each is not None]
        at_most = f"at most {format_cost(sum(known))}"
        fields["cost"] = at_most if len(known) == len(costs) else "only the answers tell"
    for number, change in enumerate(plan.changes):
        fields["changed" if not number else f"changed {number + 1}"] = change.text
    if plan.changes:
        fields["so"] = "`headrace run` refuses it without --on-change resume, restart or recompute"
    print_fields(fields)
    print_table(
        (
            (
                each.stage,
                "" if each.query else each.workers,
                "disk" if each.is_durable else "memory",
                *_forecast_cells(each),
            )
            for each in plan.stages
        ),
        ("stage", "workers", "output", "calls", "in the ledger", "cost"),
        numbers=("workers", "calls", "in the ledger", "cost"),
    )
    if queries := [each for each in plan.stages if each.query]:
        print_table(
            ((each.stage, each.query, each.tasks_published) for each in queries),
            ("stage", "shuffles", "tasks published"),
            numbers=("tasks published",),
        )


def _forecast_cells(stage: Any) -> tuple[str, str, str]:
    if not stage.expensive:
        return "", "", ""
    return (
        "?" if stage.calls_max is None else f"{stage.calls_max:,}",
        f"{stage.calls_recorded:,}",
        "?" if stage.cost_max is None else format_cost(stage.cost_max),
    )


# -- inspect -------------------------------------------------------------------------------------


@app.command(epilog=as_example("headrace pipeline inspect captions caption"))
@on_workspace
def inspect(
    ws: hr.Workspace,
    name: JobArgument,
    stage: Annotated[
        str,
        typer.Argument(metavar="[STAGE]", help="Show its offsets.", show_default=False),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Show what is stored of a job: stages, topics and who is behind, calls, payloads."""
    from headrace.pipeline.status.job_catalog import describe_job

    found = describe_job(ws, name)
    if stage and stage not in found.record.stages:
        known = ", ".join(map(repr, found.record.stages))
        raise NotFoundError(f"job {name!r} has no stage {stage!r}", do=f"name one of {known}")
    if json:
        print_json(_described(found, stage))
        return
    record = found.record
    print_fields(
        {
            "job": record.job,
            "outcome": found.status.outcome if found.status else "never seen",
            "generation": record.generation,
            "record": record.number,
            "payloads": f"{counted(found.payload_objects, 'object')},"
            f" {format_size(found.payload_bytes)}",
            "shuffle files": f"{counted(found.shuffle_objects, 'object')},"
            f" {format_size(found.shuffle_bytes)}",
        }
    )
    names = [stage] if stage else list(record.stages)
    _print_stages(found, names)
    _print_topics(found, names)
    if stage:
        _print_offsets(found, stage)


def _print_stages(found: JobDescription, names: list[str]) -> None:
    rows = []
    for name in names:
        each, calls = found.record.stages[name], found.calls.get(name)
        figures: tuple[object, ...] = ("",) * 5
        if calls:
            totals = calls.totals
            figures = (totals.results, totals.failures, calls.in_doubt,
                       totals.resends + totals.retries, format_cost(totals.cost))  # fmt: skip
        rows.append((name, each.revision, each.fingerprint[:12], *figures))
    columns = ("stage", "revision", "fingerprint", "results", "failed", "in doubt", "sent again",
               "cost")  # fmt: skip
    print_table(rows, columns, numbers=("revision", *columns[3:]))


def _print_topics(found: JobDescription, names: list[str]) -> None:
    rows = [
        (
            each.topic,
            each.partitions,
            each.messages,
            "?" if each.rows is None else each.rows,
            ", ".join(f"{reader.group} {reader.behind} behind" for reader in each.readers)
            if each.is_current
            else "no run needs it: see `headrace pipeline gc`",
        )
        for each in found.topics
        if each.stage in names or not each.is_current
    ]
    columns = ("topic", "partitions", "messages", "rows", "read by")
    print_table(rows, columns, numbers=columns[1:4])


def _print_offsets(found: JobDescription, stage: str) -> None:
    for topic in found.topics:
        if topic.stage == stage and topic.is_current:
            groups = [reader.group for reader in topic.readers]
            rows = [
                (
                    number,
                    begin,
                    end,
                    *(each.offsets.get(number, "") for each in topic.readers),
                )
                for number, (begin, end) in enumerate(topic.bounds)
            ]
            columns = (f"partition of {topic.topic}", "begin", "end", *groups)
            print_table(rows, columns, numbers=columns)


def _described(found: JobDescription, stage: str) -> dict[str, Any]:
    record = found.record
    return {
        "job": record.job,
        "outcome": found.status.outcome if found.status else None,
        "generation": record.generation,
        "record": record.number,
        "partitions": record.partitions,
        "payload_objects": found.payload_objects,
        "payload_bytes": found.payload_bytes,
        "shuffle_objects": found.shuffle_objects,
        "shuffle_bytes": found.shuffle_bytes,
        "stages": {
            name: msgspec.to_builtins(each) | {"calls": _described_calls(found, name)}
            for name, each in record.stages.items()
            if stage in ("", name)
        },
        "topics": [
            {**each._asdict(), "readers": [reader._asdict() for reader in each.readers]}
            for each in found.topics
            if stage in ("", each.stage)
        ],
    }


def _described_calls(found: JobDescription, name: str) -> dict[str, Any] | None:
    calls = found.calls.get(name)
    if calls is None:
        return None
    counts = {"under_way": calls.under_way, "in_doubt": calls.in_doubt, "cost": calls.totals.cost}
    shown: dict[str, Any] = msgspec.to_builtins(calls.totals)
    return shown | counts


# -- freeing space -------------------------------------------------------------------------------


@app.command(epilog=as_example("headrace pipeline gc captions --dry-run"))
@on_workspace
def gc(
    ws: hr.Workspace,
    name: JobArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List it, and remove nothing.")
    ] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove what no run of a job needs again: what restarts, recomputed stages and crashes left.

    Results of an operator that was changed are removed too: if you change it back, its calls are
    paid again. A running job is refused.
    """
    from headrace.pipeline.status.garbage import collect_garbage, find_garbage

    found = find_garbage(ws, name)
    if not dry_run and not found.is_empty:
        confirm(f"Remove {_amount(found)} of job {name!r}?", yes=yes)
        found = collect_garbage(ws, name)
    if json:
        print_json(_described_garbage(name, found, removed=not dry_run))
    elif found.is_empty:
        print_line(f"{name} has nothing that its next run does not need")
    elif dry_run:
        _print_garbage(found)
    else:
        print_line(f"{name}: removed {_amount(found)}")


def _amount(found: Garbage) -> str:
    objects = len(found.objects) + sum(each.objects for each in found.shuffles)
    return (
        f"{counted(len(found.topics), 'topic')}, {counted(objects, 'object')}"
        f" ({format_size(found.bytes)}) and {counted(found.results, 'result')}"
    )


def _print_garbage(found: Garbage) -> None:
    rows: list[tuple[object, ...]] = [("topic", topic, "") for topic in found.topics]
    rows += [("object", each.key, format_size(each.bytes)) for each in found.objects]
    rows += [("shuffle files", each.name, format_size(each.bytes)) for each in found.shuffles]
    rows += [("results", each.stage, f"{each.results:,}") for each in found.ledger]
    print_table(rows, ("what", "name", "size"), numbers=("size",))


def _described_garbage(name: str, found: Garbage, *, removed: bool) -> dict[str, Any]:
    return {
        "job": name,
        "removed": removed,
        "topics": found.topics,
        "objects": [{"key": each.key, "bytes": each.bytes} for each in found.objects],
        "bytes": found.bytes,
        "shuffle_files": [each._asdict() for each in found.shuffles],
        "ledger": [each._asdict() for each in found.ledger],
    }


@app.command(epilog=as_example("headrace pipeline delete captions --yes"))
@on_workspace
def delete(ws: hr.Workspace, name: JobArgument, yes: YesOption = False) -> None:
    """Delete a job: its topics, payloads, shuffle files, ledger and records.

    What its sinks hold stays there. A later run of that name begins from scratch and pays for
    everything again. A running job is refused.
    """
    from headrace.pipeline.status.garbage import delete_job
    from headrace.pipeline.status.job_catalog import job_record

    job_record(ws, name)
    confirm(f"Delete job {name!r} with all results that were paid for?", yes=yes)
    delete_job(ws, name)
    print_line(f"{name} is deleted; what its sinks hold stays there")
