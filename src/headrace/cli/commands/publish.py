"""`headrace publish`: publishes NDJSON to collections as one transaction."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from io import BufferedReader
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

import headrace as hr
from headrace.cli.line_chunks import chunks
from headrace.cli.options.completion import complete_collection
from headrace.cli.options.workspace_options import on_workspace
from headrace.cli.render.output import JsonOption, as_example, console, print_json, print_line
from headrace.cli.render.units import counted
from headrace.errors import DocumentError, UsageError
from headrace.journal.documents.ndjson import line_bytes_max

_STDIN = "-"


class _NdjsonInput(NamedTuple):
    """A file with documents for a collection."""

    collection: str
    name: str
    file: BufferedReader


def register(app: typer.Typer) -> None:
    example = "headrace publish bank/debits=debits.ndjson bank/credits=credits.ndjson"
    app.command(epilog=as_example(example))(on_workspace(publish))


def publish(
    ws: hr.Workspace,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="COLLECTION[=FILE]...",
            help="A collection and its NDJSON file; without a file, or with -, stdin.",
            autocompletion=complete_collection,
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            help="The publisher's name: it takes over from the previous publisher of that name."
        ),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Publish NDJSON to one collection or several, as one transaction.

    All documents become visible at once, or none.
    """
    published: Counter[str] = Counter()
    with ExitStack() as stack:
        opened = _open(sources, stack)
        collections = {each.collection: ws.collection(each.collection) for each in opened}
        progress = stack.enter_context(_progress())
        publisher = stack.enter_context(closing(ws.publisher(name)))
        with publisher as tx:
            for source in opened:
                collection = collections[source.collection]
                published[collection.name] += _append(tx, collection, source, progress)
    if json:
        print_json({"documents": published})
    else:
        parts = [f"{counted(count, 'document')} into {name}" for name, count in published.items()]
        print_line(f"published {', '.join(parts)}")


def _open(given: Sequence[str], stack: ExitStack) -> list[_NdjsonInput]:
    """Open every file before the first one is read, so that a wrong name costs nothing."""
    sources = []
    for each in given:
        collection, _, path = each.partition("=")
        if (path or _STDIN) == _STDIN:
            sources.append(
                _NdjsonInput(collection, "stdin", cast(BufferedReader, sys.stdin.buffer))
            )
            continue
        sources.append(_NdjsonInput(collection, path, stack.enter_context(_open_file(path))))
    if len([each for each in sources if each.name == "stdin"]) > 1:
        raise UsageError("stdin is named more than once", do="give each collection its own file")
    return sources


def _open_file(path: str) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", do="name a file that you can read"
        ) from error


def _append(
    tx: hr.Transaction, collection: hr.Collection, source: _NdjsonInput, progress: Progress
) -> int:
    count = 0
    bar = progress.add_task(source.name, total=_size(source.file))
    for chunk in chunks(source.file, line_bytes_max(hr.JournalSettings().document_bytes_max)):
        try:
            count += tx.append(collection, chunk.data)
        except DocumentError as error:
            raise _located(error, source.name, chunk.lines_before) from None
        progress.advance(bar, len(chunk.data))
    return count


def _located(error: DocumentError, source: str, lines_before: int) -> DocumentError:
    """Return the error with the file, and the line in the file instead of in the chunk."""
    line = re.match(r"line (\d+)", error.what)
    if line is None:
        return DocumentError(f"{source}: {error.what}", do=error.do)
    where = f"{source} line {int(line[1]) + lines_before}"
    return DocumentError(where + error.what[line.end() :], do=error.do)


def _size(file: BufferedReader) -> int | None:
    try:
        found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _progress() -> Progress:
    """Return a progress bar on stderr, if that is a terminal. It disappears at the end."""
    out = console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
