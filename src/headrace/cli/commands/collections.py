"""`headrace collections`: lists, creates, shows and deletes collections."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import headrace as hr
from headrace.cli.options.completion import complete_collection
from headrace.cli.options.workspace_options import (
    DEFAULT_WORKSPACE,
    TlsRootOption,
    TokenOption,
    WorkspaceOption,
    on_workspace,
    open_workspace,
)
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
from headrace.cli.render.units import (
    counted,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from headrace.journal.collection import define
from headrace.journal.contract import JournalInfo
from headrace.journal.documents.schema import deserialize, to_ddl
from headrace.journal.names import parse_journal_name

_JOURNALS_SHOWN = 20

app = typer.Typer(no_args_is_help=True, help="List, create, show and delete collections.")

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of the collection.", autocompletion=complete_collection
    ),
]


@app.command(
    epilog=as_example(
        "headrace collections create bank/debits 'account string, cents long' --key account"
    )
)
def create(
    name: NameArgument,
    schema: Annotated[str, typer.Argument(metavar="DDL", help="'field type [NOT NULL], ...'")],
    key: Annotated[
        str, typer.Option(metavar="A,B", help="Documents with equal keys keep their order.")
    ] = "",
    partition_by: Annotated[
        str, typer.Option(metavar="X,Y", help="Each combination of values has its own journals.")
    ] = "",
    journals: Annotated[int, typer.Option(help="Journals of each partition.")] = 1,
    retention: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration, metavar="TIME", help="Keep documents this long, such as 7d."
        ),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_size, metavar="SIZE", help="Keep this much of each journal, such as 10GiB."
        ),
    ] = None,
    json: JsonOption = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Create a collection, or change an existing one to this definition."""
    definition: dict[str, Any] = {
        "key": _names(key),
        "partition_by": _names(partition_by),
        "journals": journals,
        "retention_s": retention,
        "retention_bytes": retention_bytes,
    }
    # Check the definition before this command creates a workspace for it.
    define(name, schema, **definition)
    with open_workspace(workspace, token, tls_root, create=True) as ws:
        before = {each.name: each.definition for each in ws.collections()}.get(name)
        collection = ws.collection(name, schema, **definition)
        found = _describe(collection, ws.journals(hr.selector(name)))
    outcome = "created" if before is None else "changed"
    if before == collection.definition:
        outcome = "unchanged"
    if json:
        print_json({"outcome": outcome, **found})
    else:
        print_line(f"{outcome} {name}: {found['schema']}")


@app.command("list", epilog=as_example("headrace collections list --json"))
@on_workspace
def list_(ws: hr.Workspace, json: JsonOption = False) -> None:
    """List the collections of the workspace."""
    journals: dict[str, list[JournalInfo]] = {}
    for journal in ws.journals():
        journals.setdefault(parse_journal_name(journal.name).collection, []).append(journal)
    found = [_describe(each, journals.get(each.name, [])) for each in ws.collections()]
    if json:
        print_json(found)
    elif found:
        print_table(
            (
                (
                    each["name"],
                    ", ".join(each["key"]),
                    ", ".join(each["partition_by"]),
                    each["journals"],
                    format_size(each["bytes"]),
                    each["schema"],
                )
                for each in found
            ),
            ("collection", "key", "partitioned by", "journals", "size", "schema"),
            numbers=("journals", "size"),
        )
    else:
        print_line(f"no collections in {ws.location}")


@app.command(epilog=as_example("headrace collections show bank/debits"))
@on_workspace
def show(ws: hr.Workspace, name: NameArgument, json: JsonOption = False) -> None:
    """Show one collection: its schema, key, journals and size."""
    collection = ws.collection(name)
    journals = ws.journals(hr.selector(name))
    found = _describe(collection, journals)
    if json:
        heads = {each.name: {"begin": each.begin, "head": each.head} for each in journals}
        print_json(found | {"offsets": heads})
        return
    older = {f"version {n}": ddl for n, ddl in enumerate(found["versions"][:-1])}
    print_fields(
        {
            "collection": name,
            "schema": found["schema"],
            "version": found["version"],
            **older,
            "key": ", ".join(found["key"]) or "none",
            "partitioned by": ", ".join(found["partition_by"]) or "nothing",
            "journals": _journals(found),
            "retention": _retention(found),
            "frames": found["frames"],
            "size": format_size(found["bytes"]),
        }
    )
    if len(journals) > _JOURNALS_SHOWN:
        print_line(f"\nfor each journal: headrace journals list --collection {name}")
    elif journals:
        print_line("")
        rows = ((each.name, each.begin, each.head) for each in journals)
        print_table(rows, ("journal", "begin", "head"), numbers=("begin", "head"))


@app.command(epilog=as_example("headrace collections delete bank/debits --yes"))
@on_workspace
def delete(ws: hr.Workspace, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a collection with its journals and documents."""
    ws.collection(name)
    journals = ws.journals(hr.selector(name))
    size = format_size(sum(each.head - each.begin for each in journals))
    confirm(f"Delete {name} with {counted(len(journals), 'journal')} ({size})?", yes=yes)
    ws.delete_collection(name)
    print_line(f"deleted {name}")


def _names(given: str) -> list[str]:
    return [part.strip() for part in given.split(",")] if given else []


def _describe(collection: hr.Collection, journals: list[JournalInfo]) -> dict[str, Any]:
    definition = collection.definition
    versions = [to_ddl(deserialize(each)) for each in definition.schemas]
    return {
        "name": collection.name,
        "schema": versions[-1],
        "version": collection.version,
        "versions": versions,
        "key": collection.key,
        "partition_by": collection.partition_by,
        "journals": len(journals),
        "journals_per_partition": collection.journals,
        "retention_s": definition.retention_s,
        "retention_bytes": definition.retention_bytes,
        "frames": sum(each.frames for each in journals),
        "bytes": sum(each.head - each.begin for each in journals),
    }


def _journals(found: dict[str, Any]) -> str:
    each = f", {found['journals_per_partition']} for each partition"
    return f"{found['journals']}{each if found['partition_by'] else ''}"


def _retention(found: dict[str, Any]) -> str:
    limits = []
    if found["retention_s"]:
        limits.append(format_duration(found["retention_s"]))
    if found["retention_bytes"]:
        limits.append(f"{format_size(found['retention_bytes'])} of each journal")
    return ", ".join(limits) or "everything is kept"
