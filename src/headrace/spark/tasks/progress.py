"""How a run of a task stands, and the one line that it ends with."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import msgspec

_log = logging.getLogger("headrace")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a task stands."""

    checkpoint: int
    """The last checkpoint that was applied."""
    rows: int
    """Documents that this run has read, over all its restarts."""
    rows_per_s: float
    """Rows per second of the last micro-batch."""
    behind_bytes: int
    """Bytes that the sources have beyond that checkpoint: see `shuffle/lag.py`."""
    shards: int
    restarts: int
    processes: tuple[int, ...] = ()
    """The process ids of the members, on their machines, while they run."""
    failure: str = ""
    """Why the run restarts, while it does."""
    checkpoints: int = 0
    """How many checkpoints this run has applied."""
    duration_s: float = 0.0
    """How long the run has taken so far."""
    output: str = ""
    """Where the rows go."""
    ended: Literal["", "done", "stopped", "failed"] = ""
    """How the run ended, in its last report."""


class RunTotals(msgspec.Struct):
    """What a run has done over all its restarts."""

    begin_s: float
    rows: int = 0
    checkpoints: int = 0
    progress: Progress | None = None
    """The last report."""


def summary(task: str, progress: Progress) -> str:
    """Return a line such as `movements: done at checkpoint 7: 2,000 rows in 3 checkpoints, no
    restarts, 12.3 s, to collection totals`."""
    return f"{task}: {ending(progress)}"


def ending(progress: Progress) -> str:
    """Return the same without the task's name."""
    rows, checkpoints = _counted(progress.rows, "row"), _counted(progress.checkpoints, "checkpoint")
    restarts = _counted(progress.restarts, "restart") if progress.restarts else "no restarts"
    line = (
        f"{progress.ended} at checkpoint {progress.checkpoint:,}: {rows} in {checkpoints},"
        f" {restarts}, {progress.duration_s:.1f} s"
    )
    return f"{line}, to {progress.output}" if progress.output else line


def print_line(line: str) -> None:
    """Log the line; write it to stderr if the program has set up no logging."""
    if _log.hasHandlers():
        _log.info("%s", line)
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
