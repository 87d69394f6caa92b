"""Computes a stage that takes all rows at once, as soon as its input is complete."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from headrace.errors import HeadraceError
from headrace.pipeline.run.job_run import JobRun, run_async
from headrace.pipeline.run.whole_stage import WholeInput
from headrace.pipeline.source.source_units import TableUnit

_LOOK_S = 0.1

_log = logging.getLogger("headrace")


def compute_when_due(
    run: JobRun, stage: str, compute: Callable[[WholeInput], Sequence[TableUnit] | None]
) -> None:
    """Compute the stage when it is due, unless its result is sealed. Return when it is over.

    `compute` stores the rows of the result and returns their units; None if there are no rows to
    read, and their columns are not known. Raises what it raises.
    """
    while not run.is_over(stage):
        whole = run.whole_stage(stage)
        taken = run_async(whole.take())
        if taken is None:
            time.sleep(_LOOK_S)
            continue
        units = compute(taken)
        if units is None:
            _log.warning(
                "job %s: stage %s has no rows to read, and its columns are not known:"
                " it has no result",
                *(run.job.id, stage),
            )
        run_async(whole.seal(taken, units or []))


def attempt_of(run: JobRun, stage: str) -> str:
    """Return the name under which this run stores the rows of a stage's result."""
    return f"{stage}.r{run.record.stages[stage].revision}.a{run.record.number}"


def named(stage: str, error: HeadraceError) -> HeadraceError:
    """Return the error as one that names the stage."""
    if repr(stage) in error.what:
        return error
    return type(error)(f"stage {stage!r}: {error.what}", do=error.do)
