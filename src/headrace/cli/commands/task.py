"""`headrace task`: shows, runs, stops, resets and deletes the tasks of a workspace."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import headrace as hr
from headrace.cli.commands.run import (
    LogOption,
    MasterOption,
    OnceOption,
    RestartsOption,
    ShardsOption,
    run_tasks,
)
from headrace.cli.options.completion import complete_task
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
from headrace.cli.render.units import counted, format_size
from headrace.errors import UsageError
from headrace.shuffle import describe_task, list_checkpoints

if TYPE_CHECKING:
    from headrace.spark.tasks.task_catalog import TaskStatus

app = typer.Typer(
    no_args_is_help=True, help="See how tasks stand, run, stop, reset and delete them."
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the task.", autocompletion=complete_task)
]


@app.command("list", epilog=as_example("headrace task list"))
@on_workspace
def list_all(ws: hr.Workspace, json: JsonOption = False) -> None:
    """List every task that somebody ran here or tried to: its state, and how far it is.

    A task is behind by the bytes that its sources have beyond the last checkpoint that is known to
    be applied. A task whose process was killed counts as failed. Streams have no state.
    """
    from headrace.spark.tasks.task_catalog import list_statuses

    found = list_statuses(ws)
    if json:
        print_json([_described(each) for each in found])
        return
    print_table(
        (_row(each) for each in found),
        ("task", "state", "since", "checkpoint", "behind", "sources", "sink", "error"),
        numbers=("checkpoint", "behind"),
    )


def _row(status: TaskStatus) -> tuple[object, ...]:
    record, run, stored = status.record, status.run, status.stored
    return (
        status.task,
        _state(status),
        _time(run.since) if run else "",
        status.applied if record else stored.last if stored else 0,
        "" if status.behind_bytes is None else format_size(status.behind_bytes),
        ", ".join(record.sources) if record else "",
        record.sink if record else "",
        run.error if run else "",
    )


def _state(status: TaskStatus) -> str:
    run = status.run
    if run and run.state == "running" and not run.is_here:
        return f"running on {run.host} (last seen {_time(run.seen)})"
    return status.state


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def _described(status: TaskStatus) -> dict[str, object]:
    """Return the JSON of a task: `last` is its newest checkpoint, `applied` the last applied."""
    run, stored = status.run, status.stored
    return (
        {"task": status.task, "last": 0}
        | (stored._asdict() if stored else {})
        | {
            "state": status.state or None,
            "since": _time(run.since) if run else None,
            "error": (run.error or None) if run else None,
            "applied": status.applied,
            "behind_bytes": status.behind_bytes,
            "run": run and msgspec.structs.asdict(run),
            "about": status.record and msgspec.structs.asdict(status.record),
        }
    )


@app.command(epilog=as_example("headrace task show movements"))
@on_workspace
def show(ws: hr.Workspace, name: NameArgument, json: JsonOption = False) -> None:
    """Show one task: what it reads and writes, its state, and how far it is."""
    from headrace.spark.tasks.task_catalog import task_status

    status = task_status(ws, name)
    if json:
        print_json(_described(status))
        return
    run, stored, record = status.run, status.stored, status.record
    fields: dict[str, object] = {"task": status.task}
    if status.state:
        fields["state"] = _state(status)
    if run:
        fields |= {"since": _time(run.since), "process": f"{run.process} on {run.host}"}
        fields |= {"error": run.error} if run.error else {}
    if stored:
        fields |= {
            "generation": stored.generation,
            "checkpoint": stored.last,
            "stored": f"{counted(stored.objects, 'object')}, {format_size(stored.bytes)}",
        }
    if status.behind_bytes is not None:
        fields["behind"] = f"{format_size(status.behind_bytes)} beyond checkpoint {status.applied}"
    if record:
        fields |= {
            "sources": ", ".join(record.sources),
            "sink": record.sink,
            "applied": "exactly once" if record.is_exactly_once else "at least once",
            "shards": record.shards,
            "file": record.file,
        }
    print_fields(fields)


@app.command(epilog=as_example("headrace task stop movements"))
@on_workspace
def stop(
    ws: hr.Workspace,
    name: NameArgument,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds to wait until it has ended.")
    ] = 60.0,
) -> None:
    """Ask a running task, in whichever process, to stop, and wait until it has.

    The task gives up its current micro-batch, and the next run does it. Exits with 1 if the task
    still runs when the time is over, or failed meanwhile. A task that does not run is no error.
    """
    from headrace.spark.tasks.run_record import stop_run
    from headrace.spark.tasks.task_catalog import task_status

    task_status(ws, name)
    ended = stop_run(ws, name, timeout)
    if ended is None:
        print_line(f"{name} does not run")
    elif ended.state == "failed":
        raise UsageError(f"task {name!r} failed as it stopped: {ended.error}", do="run it again")
    else:
        print_line(f"{name} is stopped, at checkpoint {ended.checkpoint:,}")


_WHAT_STAYS = "what its sink holds stays there"


@app.command(epilog=as_example("headrace task reset movements --yes"))
@on_workspace
def reset(ws: hr.Workspace, name: NameArgument, yes: YesOption = False) -> None:
    """Reset a task: its next run reads everything again, as another generation.

    What its sink holds stays there. A collection then gets the same rows once more; a table of a
    database gets them by key; Parquet files need another directory. A running task is refused.
    """
    from headrace.spark.tasks import task_catalog

    task_catalog.task_status(ws, name)
    confirm(f"Read everything again for task {name!r}? ({_WHAT_STAYS})", yes=yes)
    task_catalog.reset(ws, name)
    print_line(f"{name} reads everything again with its next run; {_WHAT_STAYS}")


@app.command(epilog=as_example("headrace task delete movements --yes"))
@on_workspace
def delete(ws: hr.Workspace, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a task: its checkpoints, Spark's logs of it, and the records of its runs.

    What its sink holds stays there. A later task of that name reads everything again, as after
    `headrace task reset`. A running task is refused.
    """
    from headrace.spark.tasks import task_catalog

    task_catalog.task_status(ws, name)
    confirm(f"Delete task {name!r}? ({_WHAT_STAYS})", yes=yes)
    task_catalog.delete(ws, name)
    print_line(f"{name} is deleted; {_WHAT_STAYS}")


@app.command(epilog=as_example("headrace task checkpoints movements --json"))
@on_workspace
def checkpoints(ws: hr.Workspace, name: NameArgument, json: JsonOption = False) -> None:
    """List the stored checkpoints of a task: full ones, and deltas to them."""
    found = list_checkpoints(ws.objects, name)
    if json:
        print_json([each._asdict() for each in found])
        return
    rows = ((each.number, each.kind, format_size(each.bytes)) for each in found)
    print_table(rows, ("checkpoint", "stored as", "size"), numbers=("checkpoint", "size"))


@app.command(epilog=as_example("headrace task run movements --once"))
@on_workspace
def run(
    ws: hr.Workspace,
    name: NameArgument,
    once: OnceOption = False,
    shards: ShardsOption = 0,
    restarts: RestartsOption = 5,
    master: MasterOption = "",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Run a task from the file that defined it in its last run, until Ctrl-C or once."""
    from headrace.spark.tasks.task_file import choose_tasks, load_tasks
    from headrace.spark.tasks.task_record import file_of, get_task_record

    if get_task_record(ws.objects, name) is None:
        describe_task(ws.objects, name)
    file = file_of(ws.objects, name)
    tasks = choose_tasks(load_tasks(file), [name])
    _check_same(ws, tasks[0].workspace, file)
    run_tasks(tasks, once, shards, restarts, master, log, as_json=json)


def _check_same(named: hr.Workspace, of_task: hr.Workspace, file: Path) -> None:
    """Raise UsageError if a relative path in the file leads to another workspace from here."""
    here, there = (each.directory and each.directory.resolve() for each in (named, of_task))
    if here and here != there:
        raise UsageError(
            f"{file} opens {there or of_task.location}, not {here}",
            do="use an absolute path in the file, or go to the directory where you ran it before",
        )
