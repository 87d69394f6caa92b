"""Shows how running tasks stand: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from headrace.cli.render.output import console, print_json, print_line, print_note
from headrace.cli.render.units import counted, format_size

if TYPE_CHECKING:
    from headrace.spark import Progress

_COLUMNS = ("task", "checkpoint", "rows", "rows/s", "behind", "shards", "restarts")

Form = Literal["text", "json", "nothing"]

_LOG = logging.getLogger("headrace")


class TaskDisplay:
    """Shows the progress of any number of tasks. Any thread may report."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._shown: dict[str, Progress] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self._spinner = Spinner("dots")
        screen = console(stderr=True)
        is_live = form == "text" and screen.is_terminal and sys.stdout.isatty()
        # The table disappears at the end; the lines printed above it stay.
        self._live = (
            Live(console=screen, get_renderable=self._render, transient=True) if is_live else None
        )

    def status(self, text: str) -> None:
        """Show what the command is doing to somebody at a terminal."""
        self._spinner.update(text=text)

    def note(self, text: str) -> None:
        """Print one line about something that does not end the command."""
        if self._live:
            self._live.console.print(f"note: {text}", soft_wrap=True)
        elif self._form != "nothing":
            print_note(text)

    def reporter(self, task: str) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            with self._lock:
                before = self._shown.get(task)
                self._shown[task] = progress
            self._show(task, progress, before)

        return report

    def ended(self, task: str, how: Literal["done", "stopped"]) -> None:
        """Print how a task ended, unless the task has reported it itself."""
        with self._lock:
            progress = self._shown.pop(task, None)
        if task not in self._ended:
            self._ended.add(task)
            self._print(task, how, progress, how)

    def _show(self, task: str, progress: Progress, before: Progress | None) -> None:
        if progress.ended:
            self._show_end(task, progress)
            return
        if progress.failure:
            self.note(f"task {task} is started again: {progress.failure}")
            return
        if self._live:
            self._live.refresh()
        elif before is None:
            members = counted(progress.shards, "member")
            self._print(
                task,
                "running",
                progress,
                f"runs from checkpoint {progress.checkpoint:,}, {members}",
            )
        elif progress.checkpoint != before.checkpoint:
            self._print(task, "running", progress, _line(progress))

    def _show_end(self, task: str, progress: Progress) -> None:
        from headrace.spark.tasks.progress import ending

        with self._lock:
            self._shown.pop(task, None)
            self._ended.add(task)
        self._print(task, progress.ended, progress, ending(progress))

    def _print(self, task: str, state: str, progress: Progress | None, text: str) -> None:
        if self._form == "json":
            shown = msgspec.structs.asdict(progress) if progress else {}
            print_json({"task": task, "state": state} | shown)
        elif self._live:
            self._live.refresh()
            self._live.console.print(f"{task}: {text}", soft_wrap=True)
        elif self._form == "text":
            print_line(f"{task}: {text}")

    def _render(self) -> RenderableType:
        with self._lock:
            shown = dict(self._shown)
        if not shown:
            return self._spinner
        table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
        for column in table.columns[1:]:
            column.justify = "right"
        for task, progress in shown.items():
            table.add_row(task, *_cells(progress))
        return Group(table, self._spinner)

    def __enter__(self) -> Self:
        # The display reports what the library would log.
        self._logged = _LOG.level
        _LOG.setLevel(logging.ERROR)
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
        _LOG.setLevel(self._logged)


def _cells(progress: Progress) -> tuple[str, ...]:
    return (
        f"{progress.checkpoint:,}",
        f"{progress.rows:,}",
        f"{progress.rows_per_s:,.0f}",
        format_size(progress.behind_bytes),
        f"{progress.shards}",
        f"{progress.restarts}",
    )


def _line(progress: Progress) -> str:
    checkpoint, rows, rate, behind, _, _ = _cells(progress)
    return f"checkpoint {checkpoint}, {rows} rows, {rate} rows/s, {behind} behind"
