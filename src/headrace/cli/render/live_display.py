"""A drawing on a terminal while a command runs, and the lines that it prints meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Self

from rich.console import RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from headrace.cli.render.output import console, print_line, print_note


class LiveDisplay(ABC):
    """Draws on a terminal inside a `with` block, and takes the drawing away at its end.

    Lines that are printed meanwhile stand above the drawing, and stay. Elsewhere nothing is drawn.
    """

    def __init__(self, *, is_drawn: bool, draws_per_s: float = 4.0) -> None:
        """Ask for the first drawing: whoever draws sets its own attributes before this."""
        self._spinner = Spinner("dots")
        screen = console(stderr=True)
        self._live = (
            Live(
                console=screen,
                get_renderable=self._render,
                transient=True,
                refresh_per_second=draws_per_s,
            )
            if is_drawn and screen.is_terminal
            else None
        )

    @abstractmethod
    def _render(self) -> RenderableType:
        """Return the drawing. Any thread may ask."""

    def _diverted_logs(self) -> AbstractContextManager[object]:
        """Keep the library's log out of the drawing for the length of a block."""
        return nullcontext()

    def status(self, text: str) -> None:
        """Show what the command is doing to somebody at a terminal."""
        self._spinner.update(text=text)

    def note(self, text: str) -> None:
        """Print one line about something that does not end the command."""
        if self._live:
            self._live.console.print(f"note: {text}", soft_wrap=True)
        else:
            print_note(text)

    def _print(self, line: str) -> None:
        if self._live:
            self._live.refresh()
            self._live.console.print(line, soft_wrap=True)
        else:
            print_line(line)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._diverted_logs())
            if self._live:
                stack.enter_context(self._live)
            self._block = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._block.close()


def figures_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for a drawing: names in the first column, figures in the others."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table
