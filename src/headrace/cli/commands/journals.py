"""`headrace journals`: lists, shows, reads and deletes journals."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import headrace as hr
from headrace import clock
from headrace.cli.options.journal_options import (
    OFFSET_MAX,
    WhereOption,
    check_partition_fields,
    select,
)
from headrace.cli.options.workspace_options import on_workspace
from headrace.cli.render.document_format import write_json, write_ndjson
from headrace.cli.render.json_values import rows
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
from headrace.cli.render.units import format_size
from headrace.errors import NotFoundError
from headrace.ids import JournalId, format_producer
from headrace.journal.committed_documents import documents
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.local.records import NO_JOURNAL
from headrace.journal.names import JournalName, Selector, parse_journal_name, unescape_value

app = typer.Typer(no_args_is_help=True, help="List, show, read and delete journals.")

JournalArgument = Annotated[
    str, typer.Argument(metavar="JOURNAL", help="The whole name of the journal.")
]


@app.command("list", epilog=as_example("headrace journals list --collection bank/debits"))
@on_workspace
def list_(
    ws: hr.Workspace,
    collection: Annotated[str, typer.Option(help="List journals of this collection only.")] = "",
    where: WhereOption = None,
    json: JsonOption = False,
) -> None:
    """List journals with their offsets."""
    selector = select(collection, where)
    if collection:
        check_partition_fields(ws.collection(collection), selector)
    found = ws.journals(selector)
    if json:
        print_json([_describe(each) for each in found])
    elif found:
        size = (format_size(each.head - each.begin) for each in found)
        rows = ((j.name, j.begin, j.head, j.frames, s) for j, s in zip(found, size, strict=True))
        columns = ("journal", "begin", "head", "frames", "size")
        print_table(rows, columns, numbers=columns[1:])
    else:
        print_line("no journals")


@app.command(epilog=as_example("headrace journals stat bank/debits/0000 --json"))
@on_workspace
def stat(ws: hr.Workspace, journal: JournalArgument, json: JsonOption = False) -> None:
    """Show one journal: where it begins and ends, and how much is in it."""
    found = _find(ws, journal)
    described = _describe(found)
    if json:
        print_json(described)
        return
    partition = described.pop("partition")
    described["bytes"] = f"{described['bytes']} ({format_size(described['bytes'])})"
    print_fields(described | {f"partition {field}": value for field, value in partition.items()})


@app.command(epilog=as_example("headrace journals read bank/debits/0000 --raw"))
@on_workspace
def read(
    ws: hr.Workspace,
    journal: JournalArgument,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            max=OFFSET_MAX,
            metavar="OFFSET",
            help="Start here. Default: its begin.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print every frame instead of the committed documents.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print committed documents, or frames, as NDJSON; with --json as one array."""
    found = _find(ws, journal)
    collection = ws.collection(parse_journal_name(journal).collection)
    frames = ws.frames(found, from_, committed=not raw)
    write = write_json if json else write_ndjson
    if raw:
        names = {each.id: each.name for each in ws.journals()}
        write([_frame_row(frame, names)] for frame in frames)
    else:
        write(rows(documents(collection, journal, each, meta=False)) for each in frames)


@app.command(epilog=as_example("headrace journals delete bank/debits/region=eu/0000 --yes"))
@on_workspace
def delete(
    ws: hr.Workspace,
    journals: Annotated[list[str], typer.Argument(metavar="JOURNAL...")],
    yes: YesOption = False,
) -> None:
    """Delete journals with their documents.

    Publishing documents that belong into a deleted journal creates it again.
    """
    size = format_size(sum(j.head - j.begin for j in (_find(ws, name) for name in journals)))
    confirm(f"Delete {', '.join(journals)} ({size})?", yes=yes)
    ws.delete_journals(journals)
    for journal in journals:
        print_line(f"deleted {journal}")


def _find(ws: hr.Workspace, journal: str) -> JournalInfo:
    name = parse_journal_name(journal)
    for found in ws.journals(Selector(name.collection)):
        if found.name == journal:
            return found
    raise NotFoundError(
        f"no journal {journal!r} in {ws.location}", do="see `headrace journals list`"
    )


def _describe(journal: JournalInfo) -> dict[str, Any]:
    name: JournalName = parse_journal_name(journal.name)
    return {
        "journal": journal.name,
        "id": journal.id,
        "collection": name.collection,
        "partition": {field: unescape_value(value) for field, value in name.partition},
        "begin": journal.begin,
        "head": journal.head,
        "frames": journal.frames,
        "bytes": journal.head - journal.begin,
    }


def _frame_row(frame: Frame, names: dict[JournalId, str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "offset": frame.offset,
        "end": frame.end,
        "producer": format_producer(frame.producer),
        "clock": frame.clock,
        "time": clock.to_datetime(frame.clock) if frame.clock else None,
        "flags": frame.flags.name,
    }
    if frame.hints is None:
        return row | {"documents": frame.documents, "schema": frame.schema}
    return row | {
        "rollback": frame.clock == 0,
        "hints": [
            {
                "journal": names.get(journal, f"deleted, id {journal}"),
                "offset": offset,
                "producer": format_producer(producer),
                "clock": ack_clock,
            }
            for journal, offset, producer, ack_clock in frame.hints.tolist()
            if journal not in (NO_JOURNAL, frame.journal)
        ],
    }
