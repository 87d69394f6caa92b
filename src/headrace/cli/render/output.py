"""Prints: tables for people, JSON for programs, plain text in pipes; asks before deleting."""

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

from headrace.errors import UsageError

_PIPE_COLUMNS = 1_000_000
"""The console folds no lines in a pipe."""

_LAID_OUT_ROWS_MAX = 500
"""Laying out more rows for a terminal takes longer than reading them."""

_printing = threading.Lock()

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def as_example(command: str) -> str:
    """Return the end of a help text, whose lines are not folded."""
    return f"\b\nExample:\n  {command}"


def console(*, stderr: bool = False) -> Console:
    """Return a console on the current stdout or stderr that interprets no markup and no emoji."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        width=None if terminal else _PIPE_COLUMNS,
        markup=False,
        emoji=False,
        highlight=False,
    )


def print_error(message: str) -> None:
    """Print what ended the command: one line on stderr, even if the message has several."""
    _print_aside(("error: ", "bold red"), message)


def print_note(message: str) -> None:
    """Print one line on stderr about something that does not end the command."""
    _print_aside(("note: ", "bold"), message)


def print_warning(message: str) -> None:
    """Print one line on stderr about something that the user may want to change."""
    _print_aside(("warning: ", "bold yellow"), message)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the answer is yes or `yes` is set, else raise UsageError; no answer is a no."""
    if yes:
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was deleted", do="answer y, or pass --yes")


def _print_aside(label: tuple[str, str], message: str) -> None:
    line = Text.assemble(label, " ".join(message.splitlines()))
    console(stderr=True).print(line, soft_wrap=True)


def print_line(text: str) -> None:
    console().print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """Print one JSON value: indented on a terminal, on one line elsewhere."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded)
    # One write with its line end, because several tasks print at the same time.
    with _printing:
        sys.stdout.write(encoded.decode() + "\n")
        sys.stdout.flush()


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one thing: a line for each of its fields."""
    out = console()
    if fields and not out.is_terminal:
        _print_plain([(name, str(value)) for name, value in fields.items()], (False, False))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, str(value))
    out.print(table)


def print_table(
    rows: Iterable[Iterable[Any]], columns: Sequence[str], *, numbers: Collection[str] = ()
) -> None:
    """Print many things, a row for each, with the columns in `numbers` aligned to the right."""
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
    """Print a line for each row, in aligned columns, with nothing else."""
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
