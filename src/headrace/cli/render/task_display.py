"""Shows how running tasks stand: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.console import Group, RenderableType

from headrace.cli.render.live_display import LiveDisplay, figures_table
from headrace.cli.render.output import print_json
from headrace.cli.render.units import counted, format_size

if TYPE_CHECKING:
    from headrace.spark import Progress

_COLUMNS = ("task", "checkpoint", "rows", "rows/s", "behind", "shards", "restarts")

Form = Literal["text", "json", "nothing"]

_LOG = logging.getLogger("headrace")


class TaskDisplay(LiveDisplay):
    """Shows the progress of any number of tasks. Any thread may report."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._shown: dict[str, Progress] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        super().__init__(is_drawn=form == "text" and sys.stdout.isatty())

    def note(self, text: str) -> None:
        if self._form != "nothing":
            super().note(text)

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
            self._tell(task, how, progress, how)

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
            self._tell(
                task,
                "running",
                progress,
                f"runs from checkpoint {progress.checkpoint:,}, {members}",
            )
        elif progress.checkpoint != before.checkpoint:
            self._tell(task, "running", progress, _line(progress))

    def _show_end(self, task: str, progress: Progress) -> None:
        from headrace.spark.tasks.progress import ending

        with self._lock:
            self._shown.pop(task, None)
            self._ended.add(task)
        self._tell(task, progress.ended, progress, ending(progress))

    def _tell(self, task: str, state: str, progress: Progress | None, text: str) -> None:
        if self._form == "json":
            shown = msgspec.structs.asdict(progress) if progress else {}
            print_json({"task": task, "state": state} | shown)
        elif self._form == "text":
            self._print(f"{task}: {text}")

    def _render(self) -> RenderableType:
        with self._lock:
            shown = dict(self._shown)
        if not shown:
            return self._spinner
        rows = ((task, *_cells(progress)) for task, progress in shown.items())
        return Group(figures_table(_COLUMNS, rows), self._spinner)

    @contextmanager
    def _diverted_logs(self) -> Iterator[None]:
        # The display reports what the library would log.
        logged = _LOG.level
        _LOG.setLevel(logging.ERROR)
        try:
            yield
        finally:
            _LOG.setLevel(logged)


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
