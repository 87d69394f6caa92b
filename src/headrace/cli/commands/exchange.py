"""`headrace exchange`: what queries have stored, whether it is whole, and what can be removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options.completion import complete_query
from headrace.cli.options.workspace_options import on_objects
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
from headrace.cli.render.units import counted, format_size, parse_duration
from headrace.errors import DataError, UsageError
from headrace.storage import Objects

if TYPE_CHECKING:
    from headrace.exchange import QueryInventory
    from headrace.exchange.cleanup.attempt_cleanup import CleanupReport

app = typer.Typer(
    no_args_is_help=True, help="See what queries have stored, check it, and free space."
)

QueryArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUERY", help="The name or number of the query.", autocompletion=complete_query
    ),
]


# -- what there is -------------------------------------------------------------------------------


@app.command("list", epilog=as_example("headrace exchange list --stages"))
@on_objects
def list_all(
    objects: Objects,
    stages: Annotated[bool, typer.Option("--stages", help="Show a row for each stage.")] = False,
    json: JsonOption = False,
) -> None:
    """List the queries that have stored anything.

    A map task is published when it has output that readers see. The age is that of the newest file.
    """
    from headrace.cli.render import exchange_display as display
    from headrace.exchange import list_queries

    found, now_s = list_queries(objects), time.time()
    if json:
        print_json([display.described_query(each) for each in found])
    elif stages:
        plans = {each.query_id: display.StageNames(objects, each.query_id) for each in found}
        rows = [
            display.stage_row(query, stage, plans[query.query_id], now_s)
            for query in found
            for stage in query.stages
        ]
        print_table(rows, display.STAGES, numbers=display.NUMBERS)
    else:
        rows = [display.query_row(each, now_s) for each in found]
        print_table(rows, display.QUERIES, numbers=display.NUMBERS)


@app.command(epilog=as_example("headrace exchange inspect revenue --stage 0"))
@on_objects
def inspect(
    objects: Objects,
    query: QueryArgument,
    stage: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            show_default=False,
            help="Show its map tasks. The stage of the plan, or its number.",
        ),
    ] = None,
    task: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", show_default=False, help="Show the files of this map task."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what a query has stored, and who holds it.

    It shows stages, or with --stage or --task their map tasks and files. The skew of a stage is its
    largest reduce partition against the median. What cannot be read is named, and hides nothing
    else; `headrace exchange verify` reads the rows too.
    """
    from headrace.cli.render import exchange_display as display
    from headrace.exchange import describe_stages
    from headrace.exchange.cleanup.pinned_stage import list_pins, now_ms
    from headrace.exchange.query_lookup import find_query, find_stage, find_task

    found = find_query(objects, query)
    names = display.StageNames(objects, found.query_id)
    described = describe_stages(objects, found.query_id)
    pins = list_pins(objects, found.query_id, now_ms())
    if stage is not None:
        described = [find_stage(described, names.planned, stage)]
    tasks = None if task is None else find_task(described, task)
    if tasks is not None:
        described = [each for each in described if any(held in tasks for held in each.tasks)]
    if json:
        print_json(display.described_stages(found, described, names, pins, tasks))
        return
    print_fields(display.query_fields(found, pins) | display.stage_lines(described, names))
    if tasks is not None:
        for each in tasks:
            print_fields(display.task_fields(each, names))
            print_table(display.part_rows(each), display.PARTS, numbers=display.PARTS[:4])
    elif stage is not None:
        print_fields(display.stage_fields(described[0]))
        rows = display.task_rows(described[0])
        print_table(rows, display.TASKS, numbers=display.TASKS[:-1])
    else:
        rows = (display.skew_row(each, names) for each in described)
        print_table(rows, display.SKEWS, numbers=display.SKEWS[1:])


# -- whether it is whole -------------------------------------------------------------------------


@app.command(epilog=as_example("headrace exchange verify revenue"))
@on_objects
def verify(
    objects: Objects,
    query: Annotated[
        str,
        typer.Argument(
            metavar="[QUERY]",
            help="The name or number of the query. Default: all.",
            show_default=False,
            autocompletion=complete_query,
        ),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Read all published output, and list what is damaged.

    Exits with 1 if anything is damaged, missing or of a newer Headrace. Changes nothing: the next
    run of the query computes again what it needs of it.
    """
    from headrace.cli.render import exchange_display as display
    from headrace.exchange import list_queries
    from headrace.exchange import verify as check
    from headrace.exchange.query_lookup import find_query

    queries = [find_query(objects, query)] if query else list_queries(objects)
    checks = [(each, check(objects, each.query_id)) for each in queries]
    problems = [
        *(display.Problem(each, error) for each, found in checks for error in found.damages),
        *(display.Problem(each, error) for each, found in checks for error in found.unreadable),
    ]
    outputs = sum(found.outputs for _, found in checks)
    rows = sum(found.rows for _, found in checks)
    if json:
        described = [each.described() for each in problems]
        print_json({"outputs": outputs, "rows": rows, "damages": described})
    elif problems:
        print_table((each.row() for each in problems), display.PROBLEMS)
    else:
        print_line(f"{counted(outputs, 'output')} with {rows:,} rows read: nothing is damaged")
    if problems:
        raise DataError(
            f"{counted(len(problems), 'file')} of {outputs:,} outputs cannot be used",
            do="run the query again: it computes again what it needs of them",
        )


# -- freeing space -------------------------------------------------------------------------------


@app.command(epilog=as_example("headrace exchange gc --ttl 24h --dry-run"))
@on_objects
def gc(
    objects: Objects,
    ttl: Annotated[
        float,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            help="Remove what is older. Longer than any task takes to store its output.",
        ),
    ] = "24h",  # type: ignore[assignment]
    query: Annotated[
        str,
        typer.Option(
            metavar="QUERY",
            help="Look at this query only.",
            show_default=False,
            autocompletion=complete_query,
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List it, and remove nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove attempts that nobody needs.

    These were replaced, or never published. The latest published attempt of every map task stays,
    whatever its age, and so does what a reader holds. Every running query does the same for its
    workspace now and then.
    """
    from headrace.cli.render import exchange_display as display
    from headrace.exchange import AttemptCleanup
    from headrace.exchange.query_lookup import find_query

    query_id = find_query(objects, query).query_id if query else None
    cleanup = AttemptCleanup(objects)
    plans = cleanup.plan(ttl, query_id)
    report = cleanup.preview(plans) if dry_run else cleanup.carry_out(plans)
    listing = display.CleanupListing(objects, report)
    if json:
        print_json({"is_dry_run": dry_run, **listing.described()})
        return
    if report.removed or report.held:
        print_table(listing.rows(dry_run=dry_run), display.EXPIRED, numbers=display.EXPIRED[-2:])
    print_line(_amount(report, dry_run=dry_run))


def _amount(report: CleanupReport, *, dry_run: bool) -> str:
    if not report.removed and not report.held:
        return "there is nothing to remove"
    size = format_size(sum(each.bytes for each in report.removed))
    attempts = counted(len(report.removed), "attempt")
    text = f"would remove {attempts}, {size}" if dry_run else f"removed {attempts}, freed {size}"
    return f"{text}; {len(report.held)} held by readers" if report.held else text


@app.command(epilog=as_example("headrace exchange delete revenue --yes"))
@on_objects
def delete(objects: Objects, query: QueryArgument, yes: YesOption = False) -> None:
    """Delete everything that a query has stored. Its next run computes everything again.

    A query that runs or is read is refused. After a kill it counts as running for eleven minutes.
    """
    from headrace.exchange import AttemptCleanup
    from headrace.exchange.query_lookup import find_query

    found = find_query(objects, query)
    _check_free(objects, found)
    confirm(f"Delete all {format_size(found.bytes)} of query {found.label!r}?", yes=yes)
    AttemptCleanup(objects).remove_query(found.query_id)
    print_line(f"{found.label} is deleted; freed {format_size(found.bytes)}")


def _check_free(objects: Objects, query: QueryInventory) -> None:
    """Raise UsageError, with the query's name, if somebody holds it."""
    from headrace.exchange.cleanup.pinned_stage import list_pins, now_ms

    if pins := list_pins(objects, query.query_id, now_ms()):
        holders = ", ".join(dict.fromkeys(map(str, pins)))
        raise UsageError(
            f"query {query.label!r} is held by {holders}",
            do="delete it when nobody computes or reads it",
        )
