"""How running tasks stand: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
from rich.live import Live
from rich.table import Table

from headrace.cli.output import console, print_json, print_line, print_note
from headrace.cli.units import format_size

if TYPE_CHECKING:
    from headrace.spark import Progress

_COLUMNS = ("task", "checkpoint", "rows", "rows/s", "behind", "shards", "restarts")


class Display:
    """Shows the progress of any number of tasks. Any thread may report."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._shown: dict[str, Progress] = {}
        self._lock = threading.Lock()
        screen = console(stderr=True)
        self._live = Live(console=screen, auto_refresh=False) if screen.is_terminal else None

    def reporter(self, task: str) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            with self._lock:
                before = self._shown.get(task)
                self._shown[task] = progress
                self._show(task, progress, before)

        return report

    def _show(self, task: str, progress: Progress, before: Progress | None) -> None:
        if progress.failure:
            print_note(f"task {task}: {progress.failure}: it is started again")
        if self._live and not self._as_json:
            self._live.update(self._table(), refresh=True)
        elif before is None or _moved(progress) != _moved(before):
            if self._as_json:
                print_json({"task": task} | msgspec.structs.asdict(progress))
            else:
                print_line(f"{task}: {_line(progress)}")

    def _table(self) -> Table:
        table = Table(*_COLUMNS, box=None, pad_edge=False)
        for task, progress in self._shown.items():
            table.add_row(task, *_cells(progress))
        return table

    def __enter__(self) -> Self:
        if self._live and not self._as_json:
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


def _moved(progress: Progress) -> tuple[int, int]:
    return progress.checkpoint, progress.restarts


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
    checkpoint, rows, rate, behind, shards, _ = _cells(progress)
    return f"checkpoint {checkpoint}, {rows} rows, {rate} rows/s, {behind} behind, {shards} shards"
