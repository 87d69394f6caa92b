"""Shows how running pipelines stand: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from headrace.cli.render.live_display import LiveDisplay, figures_table
from headrace.cli.render.output import print_json
from headrace.cli.render.units import counted, format_cost, format_rough_time
from headrace.pipeline.status.job_status import JobStatus, StageProgress

STAGE_COLUMNS = ("stage", "units", "rows", "rows/s", "ETA", "workers", "in flight", "calls",
                 "found", "dead", "cost")  # fmt: skip
TASK_COLUMNS = ("tasks", "reused")
"""These follow if a stage shuffles."""
_LINE_S = 5.0
"""In a pipe, lines about a pipeline are at least this far apart."""
_WINDOW_S = 30.0
"""Rates are those of the last so many seconds."""

_LOG = logging.getLogger("headrace")


class StageRate(NamedTuple):
    """How fast a stage is."""

    rows_per_s: float | None = None
    time_left_s: float | None = None


class StageRates:
    """The rates of the stages of one run."""

    def __init__(self) -> None:
        self._seen: deque[JobStatus] = deque()

    def add(self, status: JobStatus) -> None:
        self._seen.append(status)
        while len(self._seen) > 2 and status.seen - self._seen[0].seen > _WINDOW_S:
            self._seen.popleft()

    def rate(self, stage: str) -> StageRate:
        """Return the rate of a stage; nothing of it before it is known."""
        if not self._seen or stage not in self._seen[-1].progress:
            return StageRate()
        first, last = self._seen[0], self._seen[-1]
        now = last.progress[stage]
        # The run began with no rows, and with the units that earlier ones left.
        is_young = last.seen - last.began <= _WINDOW_S
        rows = 0 if is_young else first.stages[stage].rows_in
        units = now.units_before if is_young else first.progress[stage].units
        duration_s = last.seen - (last.began if is_young else first.seen)
        if duration_s <= 0:
            return StageRate()
        units_per_s = (now.units - units) / duration_s
        left = None if now.units_total is None else now.units_total - now.units
        return StageRate(
            (last.stages[stage].rows_in - rows) / duration_s,
            left / units_per_s if left and units_per_s else None,
        )


class PipelineDisplay(LiveDisplay):
    """Shows one pipeline after another. Any thread may report."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._status: JobStatus | None = None
        self._rates = StageRates()
        self._line_s = 0.0
        self._lock = threading.Lock()
        self._handler = _NoteHandler(self.note)
        super().__init__(is_drawn=not as_json and sys.stdout.isatty())

    def report(self, status: JobStatus) -> None:
        """Take how a run stands."""
        with self._lock:
            before, self._status = self._status, status
            if before is None or before.job != status.job:
                before, self._rates, self._line_s = None, StageRates(), status.began
            self._rates.add(status)
            is_due = status.seen - self._line_s >= _LINE_S and _has_moved(before, status)
            if is_due:
                self._line_s = status.seen
        if self._live:
            self._live.refresh()
        elif is_due and not self._as_json and status.outcome == "running":
            self._print(f"{status.job}: {self._line(status)}")

    def ended(self, job: str) -> None:
        """Print how the run of a pipeline ended."""
        with self._lock:
            status, self._status = self._status, None
        if status is None or status.job != job:
            return
        if self._as_json:
            print_json(described(status))
        else:
            self._print(f"{job}: {summary(status)}")

    def _line(self, status: JobStatus) -> str:
        units = (f"{name} {_units(each)}" for name, each in status.progress.items())
        rates = [self._rates.rate(name) for name in status.progress]
        left = max((each.time_left_s for each in rates if each.time_left_s), default=None)
        parts = [", ".join(units) + " units", *_tasks(status), *_calls(status)]
        if left is not None:
            parts.append(f"ETA {format_rough_time(left)}")
        return "; ".join(parts)

    def _render(self) -> RenderableType:
        with self._lock:
            status = self._status
            if status is None or not status.progress:
                return self._spinner
            rates = {name: self._rates.rate(name) for name in status.progress}
        return Group(stage_table(status, rates), self._spinner)

    @contextmanager
    def _diverted_logs(self) -> Iterator[None]:
        # A table on the terminal and lines of a log would destroy each other.
        _LOG.addHandler(self._handler)
        propagates, _LOG.propagate = _LOG.propagate, False
        try:
            yield
        finally:
            _LOG.removeHandler(self._handler)
            _LOG.propagate = propagates


class _NoteHandler(logging.Handler):
    """Prints what the library logs as notes."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(record.getMessage())


def stage_columns(status: JobStatus) -> tuple[str, ...]:
    shuffles = any(each.tasks for each in status.progress.values())
    return STAGE_COLUMNS + TASK_COLUMNS if shuffles else STAGE_COLUMNS


def stage_rows(
    status: JobStatus, rates: dict[str, StageRate] | None = None
) -> list[tuple[str, ...]]:
    """Return what `stage_columns` name, for each stage."""
    width = len(stage_columns(status))
    return [
        _cells(name, status, each, (rates or {}).get(name) or StageRate())[:width]
        for name, each in status.progress.items()
    ]


def stage_table(status: JobStatus, rates: dict[str, StageRate]) -> Table:
    return figures_table(stage_columns(status), stage_rows(status, rates))


def _cells(name: str, status: JobStatus, stage: StageProgress, rate: StageRate) -> tuple[str, ...]:
    is_paid = stage.expensive
    return (
        name,
        _units(stage),
        f"{status.stages[name].rows_in:,}",
        "" if rate.rows_per_s is None else f"{rate.rows_per_s:,.0f}",
        "" if rate.time_left_s is None else format_rough_time(rate.time_left_s),
        f"{stage.working}",
        f"{stage.calls_under_way:,}" if is_paid else "",
        f"{stage.calls:,}" if is_paid else "",
        f"{stage.calls_found:,}" if is_paid else "",
        f"{stage.dead_letters:,}",
        format_cost(stage.cost) if is_paid else "",
        f"{stage.tasks:,}" if stage.tasks else "",
        f"{stage.tasks_reused:,}" if stage.tasks else "",
    )


def _units(stage: StageProgress) -> str:
    total = "?" if stage.units_total is None else f"{stage.units_total:,}"
    return f"{stage.units:,}/{total}"


def _calls(status: JobStatus) -> list[str]:
    """Return what the calls of all stages came to, in words; nothing if none is paid."""
    paid = [each for each in status.progress.values() if each.expensive]
    parts = []
    if paid:
        calls, found = sum(each.calls for each in paid), sum(each.calls_found for each in paid)
        under_way = sum(each.calls_under_way for each in paid)
        parts.append(
            counted(calls, "call")
            + (f", {under_way} in flight" if under_way else "")
            + (f", {found:,} found in the ledger" if found else "")
        )
        is_first = status.cost == status.cost_in_all
        in_all = "" if is_first else f" ({format_cost(status.cost_in_all)} in all runs)"
        parts.append(f"cost {format_cost(status.cost)}{in_all}")
    if dead := sum(each.dead_letters for each in status.progress.values()):
        parts.append(counted(dead, "dead letter"))
    if in_doubt := sum(each.in_doubt for each in paid):
        parts.append(f"{counted(in_doubt, 'call')} in doubt")
    return parts


def _tasks(status: JobStatus) -> list[str]:
    """Return the tasks of all stages that shuffle, in words; nothing if none has any."""
    tasks = sum(each.tasks for each in status.progress.values())
    reused = sum(each.tasks_reused for each in status.progress.values())
    if not tasks:
        return []
    return [counted(tasks, "task") + (f", {reused:,} reused" if reused else "")]


def summary(status: JobStatus) -> str:
    """Return how a run ended, or stands, in one line."""
    mark = ":" if _reason(status) else ";"
    return f"{status.outcome}{mark} {'; '.join(reason_and_figures(status))}"


def _reason(status: JobStatus) -> str:
    return status.error or "; ".join(dict.fromkeys(status.paused.values()))


def reason_and_figures(status: JobStatus) -> list[str]:
    """Return why a run failed or paused, if it did, and then what it has done."""
    reason = _reason(status)
    units = ", ".join(f"{name} {_units(each)}" for name, each in status.progress.items())
    parts = [f"{units} units"] if units else []
    parts += [*_tasks(status), *_calls(status), f"{status.seen - status.began:.1f} s"]
    return [reason, *parts] if reason else parts


def described(status: JobStatus) -> dict[str, Any]:
    """Return a status as JSON: the figures of each stage in one object."""
    shown: dict[str, Any] = msgspec.to_builtins(status)
    stages, progress = shown.pop("stages"), shown.pop("progress")
    # Calls and cost of the progress come from the ledger, so they also count units under way.
    shown["stages"] = {name: stages[name] | progress.get(name, {}) for name in stages}
    return shown | {"duration_s": round(status.seen - status.began, 3)}


def _has_moved(before: JobStatus | None, now: JobStatus) -> bool:
    if not now.progress:
        return False
    return before is None or (before.progress, before.stages) != (now.progress, now.stages)
