"""`headrace read`: the committed documents of a collection."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import headrace as hr
from headrace.cli.following import Follower
from headrace.cli.opening import on_workspace
from headrace.cli.output import JsonOption, as_example
from headrace.cli.rendering import Format, limited, write_json, write_ndjson, write_table
from headrace.cli.selecting import OFFSET_MAX, WhereOption, check_partition_fields, select
from headrace.cli.stopping import until_stopped
from headrace.cli.values import rows
from headrace.errors import NotFoundError, UsageError


def register(app: typer.Typer) -> None:
    example = "headrace read bank/debits --where region=eu --follow"
    app.command(epilog=as_example(example))(on_workspace(read))


def read(
    ws: hr.Workspace,
    collection: Annotated[str, typer.Argument(metavar="COLLECTION", help="Its name.")],
    where: WhereOption = None,
    from_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="JOURNAL=OFFSET", help="Where to begin in a journal; repeatable."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Stop after N documents.")
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(help="Default: table on a terminal, else ndjson.", show_default=False),
    ] = None,
    json: JsonOption = False,
    meta: Annotated[
        bool, typer.Option("--meta", help="Add _journal, _producer and _clock.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as transactions commit; Ctrl-C ends it.")
    ] = False,
) -> None:
    """Print committed documents.

    Those of one moment: of every transaction all is printed, or nothing.
    """
    if json and format:
        raise typer.BadParameter("it goes without --format", param_hint="--json")
    selector = select(collection, where)
    check_partition_fields(ws.collection(collection), selector)
    start = _offsets(ws, collection, from_offset or ())
    if follow:
        if json or format is Format.table:
            what = "one JSON value" if json else "a table"
            raise UsageError(f"--follow cannot print {what}", do="use --format ndjson")
        with until_stopped():
            follower = Follower(ws, collection, selector, start)
            write_ndjson(map(rows, limited(follower.batches(meta=meta), limit)))
        return
    batches = ws.read(collection, selector=selector, start=start, meta=meta)
    if json:
        write_json(map(rows, limited(batches, limit)))
    elif format is Format.table or (format is None and sys.stdout.isatty()):
        write_table(batches, limit)
    else:
        write_ndjson(map(rows, limited(batches, limit)))


def _offsets(ws: hr.Workspace, collection: str, given: list[str] | tuple[()]) -> dict[str, int]:
    offsets: dict[str, int] = {}
    for each in given:
        # Names of journals have '=' in them too.
        journal, _, offset = each.rpartition("=")
        if not journal or not offset.isdecimal():
            raise typer.BadParameter(f"{each!r} is not JOURNAL=OFFSET", param_hint="--from-offset")
        # By its length first: Python refuses to convert what has thousands of digits.
        if len(offset) > len(str(OFFSET_MAX)) or int(offset) > OFFSET_MAX:
            what = f"{each!r} is beyond any offset: {OFFSET_MAX} is the last"
            raise typer.BadParameter(what, param_hint="--from-offset")
        offsets[journal] = int(offset)
    known = {journal.name for journal in ws.journals(hr.selector(collection))} if offsets else set()
    for journal in offsets:
        if journal not in known:
            raise NotFoundError(
                f"{collection} has no journal {journal!r}",
                do=f"see `headrace journals list --collection {collection}`",
            )
    return offsets
