"""What is printed, and how: tables for people, JSON for programs, plain text in pipes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 1_000_000
"""Lines in a pipe are never folded."""

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
    """As one line, whatever is in it."""
    line = Text.assemble(("error: ", "bold red"), " ".join(message.splitlines()))
    console(stderr=True).print(line, soft_wrap=True)


def print_line(text: str) -> None:
    console().print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON value: indented on a terminal, on one line elsewhere."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded)
    print(encoded.decode(), flush=True)


def print_fields(fields: Mapping[str, object]) -> None:
    """One thing: a line for each of its fields."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, str(value))
    console().print(table)


def print_table(
    rows: Iterable[Iterable[Any]], columns: Iterable[str], *, numbers: Iterable[str] = ()
) -> None:
    """Many things: a row for each. The columns in `numbers` are aligned to the right."""
    out = console()
    table = Table(
        box=box.SIMPLE_HEAD if out.is_terminal else None,
        pad_edge=False,
        header_style="bold",
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    out.print(table)
