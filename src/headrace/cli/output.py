"""What is printed, and how: tables for people, JSON for programs, plain text in pipes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 1_000_000
"""Lines in a pipe are never folded."""

_LAID_OUT_ROWS_MAX = 500
"""To lay out more for a terminal takes longer than to find them."""

_printing = threading.Lock()

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def as_example(command: str) -> str:
    """The end of a help text; its lines are not folded."""
    return f"\b\nExample:\n  {command}"


def console(*, stderr: bool = False) -> Console:
    """Of the present stdout or stderr: neither markup nor emoji is looked for in what it prints."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        width=None if terminal else _PIPE_COLUMNS,
        markup=False,
        emoji=False,
        highlight=False,
    )


def print_error(message: str) -> None:
    """What ended the command: one line on stderr, whatever is in it."""
    _print_aside(("error: ", "bold red"), message)


def print_note(message: str) -> None:
    """What the command goes on after: one line on stderr."""
    _print_aside(("note: ", "bold"), message)


def print_warning(message: str) -> None:
    """What the user may want to change: one line on stderr."""
    _print_aside(("warning: ", "bold yellow"), message)


def _print_aside(label: tuple[str, str], message: str) -> None:
    line = Text.assemble(label, " ".join(message.splitlines()))
    console(stderr=True).print(line, soft_wrap=True)


def print_line(text: str) -> None:
    console().print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON value: indented on a terminal, on one line elsewhere."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded)
    # One write with its line end: several tasks print beside each other.
    with _printing:
        sys.stdout.write(encoded.decode() + "\n")
        sys.stdout.flush()


def print_fields(fields: Mapping[str, object]) -> None:
    """One thing: a line for each of its fields."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, str(value))
    console().print(table)


def print_table(
    rows: Iterable[Iterable[Any]], columns: Sequence[str], *, numbers: Collection[str] = ()
) -> None:
    """Many things: a row for each. The columns in `numbers` are aligned to the right."""
    cells = [[cell if isinstance(cell, Text) else str(cell) for cell in row] for row in rows]
    out = console()
    if not out.is_terminal or len(cells) > _LAID_OUT_ROWS_MAX:
        _print_plain([columns, *cells], [column in numbers for column in columns])
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    out.print(table)


def _print_plain(rows: Sequence[Sequence[str | Text]], is_number: Sequence[bool]) -> None:
    """A line for each row, in aligned columns, with nothing else."""
    columns = [
        _aligned([_on_one_line(str(cell)) for cell in column], to_the_right=number)
        for column, number in zip(zip(*rows, strict=True), is_number, strict=True)
    ]
    lines = ("  ".join(row).rstrip() for row in zip(*columns, strict=True))
    print("\n".join(lines))


def _aligned(texts: Sequence[str], *, to_the_right: bool) -> list[str]:
    widths = [len(text) if text.isascii() else cell_len(text) for text in texts]
    widest = max(widths)
    gaps = [" " * (widest - width) for width in widths]
    pairs = zip(gaps, texts, strict=True) if to_the_right else zip(texts, gaps, strict=True)
    return [first + second for first, second in pairs]


def _on_one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)
