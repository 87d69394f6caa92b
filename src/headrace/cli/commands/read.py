"""`headrace read`: prints the committed documents of collections."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Annotated

import pyarrow as pa
import typer

import headrace as hr
from headrace.cli.interruption import run_aside, until_stopped
from headrace.cli.options.completion import complete_collection
from headrace.cli.options.journal_options import (
    OFFSET_MAX,
    WhereOption,
    check_partition_fields,
    select,
)
from headrace.cli.options.member_options import (
    MemberOption,
    MemberTokenOption,
    ShardsOption,
    members_to_use,
)
from headrace.cli.options.workspace_options import TlsRootOption, on_workspace
from headrace.cli.render.document_format import (
    Format,
    limited,
    write_json,
    write_ndjson,
    write_table,
)
from headrace.cli.render.json_values import rows
from headrace.cli.render.output import JsonOption, as_example, print_note
from headrace.errors import HeadraceError, NotFoundError, UsageError
from headrace.shuffle.member.local_members import opened_members
from headrace.shuffle.shuffle_follower import checkpoint_documents

_GRACE_S = 3.0
"""How long a stopped command waits for somebody to read what it is printing."""


CollectionsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="COLLECTION", help="One collection or more.", autocompletion=complete_collection
    ),
]


def register(app: typer.Typer) -> None:
    example = "headrace read bank/debits --where region=eu --follow"
    app.command(epilog=as_example(example))(on_workspace(read))


def read(
    ws: hr.Workspace,
    collections: CollectionsArgument,
    where: WhereOption = None,
    from_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="JOURNAL=OFFSET", help="Start a journal at this offset; repeatable."),
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
        bool,
        typer.Option(
            "--meta",
            help="Add _journal, _producer, _clock; with members _collection, _shard, _clock.",
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue as transactions commit, until Ctrl-C.")
    ] = False,
    shards: ShardsOption = None,
    member: MemberOption = None,
    member_token: MemberTokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Print committed documents.

    It prints the documents of one moment: all of a transaction or nothing. It reads several
    collections, or one with --shards or --member, through a shuffle.
    """
    form = _form(collections, format, json=json, follow=follow)
    selectors = _selectors(ws, collections, where)
    stopping = threading.Event() if follow else None
    with until_stopped() if follow else nullcontext():
        if len(collections) > 1 or shards or member:
            if from_offset:
                raise UsageError("a shuffle begins at the beginning", do="leave out --from-offset")
            service = hr.ServiceSettings(token=member_token, tls_root=tls_root)
            members = members_to_use(shards, member or ())
            batches = _shuffled(ws, selectors, members, service, stopping, meta=meta)
        else:
            [(name, selector)] = selectors.items()
            start = _offsets(ws, name, from_offset or ())
            batches = (
                ws.follow(name, selector=selector, start=start, meta=meta, stop=stopping)
                if stopping
                else ws.read(name, selector=selector, start=start, meta=meta)
            )
        if form is Format.table:
            write_table(batches, limit)
        elif json:
            write_json(map(rows, limited(batches, limit)))
        else:
            _write_lines(limited(batches, limit), stopping)


def _shuffled(
    ws: hr.Workspace,
    selectors: Mapping[str, hr.Selector],
    members: int | Sequence[str],
    service: hr.ServiceSettings,
    stopping: threading.Event | None,
    *,
    meta: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield whole transactions: those committed now, or with `stopping` also later ones."""
    bindings = [hr.Binding(collection=name, selector=each) for name, each in selectors.items()]
    if stopping:
        yield from hr.follow(
            ws, bindings, members, service=service, meta=meta, stop=stopping, on_restart=_note
        )
        return
    cut = ws.journals()
    with (
        opened_members(members, service, processes=False) as (addresses, service),
        hr.Shuffle(ws, bindings, addresses, cut=cut, service=service) as shuffle,
    ):
        for checkpoint in shuffle.drain():
            yield from checkpoint_documents(shuffle, checkpoint, meta=meta)
            shuffle.release(checkpoint)


def _note(error: HeadraceError, delay_s: float) -> None:
    print_note(f"{error.what}; reading continues in {delay_s:g} s where it stopped")


def _write_lines(batches: Iterator[pa.RecordBatch], stopping: threading.Event | None) -> None:
    if stopping is None:
        write_ndjson(map(rows, batches))
        return
    until_stop = takewhile(lambda _: not stopping.is_set(), batches)
    run_aside(lambda: write_ndjson(map(rows, until_stop)), stopping.set, grace_s=_GRACE_S)


def _form(collections: list[str], given: Format | None, *, json: bool, follow: bool) -> Format:
    if json and given:
        raise typer.BadParameter("cannot be combined with --format", param_hint="--json")
    if follow and (json or given is Format.table):
        what = "one JSON value" if json else "a table"
        raise UsageError(f"--follow cannot print {what}", do="use --format ndjson")
    several = len(collections) > 1
    if several and given is Format.table:
        raise UsageError("several collections do not fit one table", do="use --format ndjson")
    fits_a_table = not (json or follow or several)
    return given or (Format.table if fits_a_table and sys.stdout.isatty() else Format.ndjson)


def _selectors(
    ws: hr.Workspace, collections: list[str], where: list[str] | None
) -> dict[str, hr.Selector]:
    if len(set(collections)) < len(collections):
        raise UsageError("a collection is named twice", do="name each collection once")
    selectors = {name: select(name, where) for name in collections}
    for name, selector in selectors.items():
        check_partition_fields(ws.collection(name), selector)
    return selectors


def _offsets(ws: hr.Workspace, collection: str, given: list[str] | tuple[()]) -> dict[str, int]:
    offsets: dict[str, int] = {}
    for each in given:
        # The name of a journal may have '=' in it, too.
        journal, _, offset = each.rpartition("=")
        if not journal or not offset.isdecimal():
            raise typer.BadParameter(f"{each!r} is not JOURNAL=OFFSET", param_hint="--from-offset")
        # Check the length first: Python refuses to convert thousands of digits.
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
