"""The one line that a run of a task ends with."""

from __future__ import annotations

import logging
import sys

from headrace.spark.tasks.task_run import Progress

_log = logging.getLogger("headrace")


def summary(task: str, progress: Progress) -> str:
    """Such as `movements: done at checkpoint 7: 2,000 rows in 3 checkpoints, no restarts, 12.3 s,
    to collection totals`."""
    return f"{task}: {ending(progress)}"


def ending(progress: Progress) -> str:
    rows, checkpoints = _counted(progress.rows, "row"), _counted(progress.checkpoints, "checkpoint")
    restarts = _counted(progress.restarts, "restart") if progress.restarts else "no restarts"
    line = (
        f"{progress.ended} at checkpoint {progress.checkpoint:,}: {rows} in {checkpoints},"
        f" {restarts}, {progress.duration_s:.1f} s"
    )
    return f"{line}, to {progress.output}" if progress.output else line


def say(line: str) -> None:
    """To whoever the program's logging tells such things; to stderr if it has none."""
    if _log.hasHandlers():
        _log.info("%s", line)
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
