"""A stage that is run as a query: its map tasks read what the stages above have produced.

What a task has published stays: a run that dies is followed by one that computes the other tasks.
When all are there, the rows are stored as payloads and sealed like those of any stage that takes
all rows at once, and nobody needs the shuffle files any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, StoppedError, bug
from headrace.exchange import AttemptCleanup, BackgroundCleanup
from headrace.pipeline.calls.call_results import one_line
from headrace.pipeline.operators.shuffles import ShuffleOperator
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.message_scan import scan_messages
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.run.shuffle_files import shuffle_name
from headrace.pipeline.run.whole_stage import WholeInput
from headrace.pipeline.run.whole_stage_loop import attempt_of, compute_when_due, named
from headrace.pipeline.source.source_units import TableUnit, ranges
from headrace.pipeline.source.sources import rows_digest
from headrace.plan.plan_run import PlanRun, TaskRunner
from headrace.plan.query import Query


def run_shuffle_stage(run: JobRun, stage: str, runner: TaskRunner) -> None:
    """Compute the stage when it is due, unless its result is sealed, and return when it is over.

    The run fails if that fails. `runner` stops when the stage is over.
    """
    try:
        compute_when_due(run, stage, partial(_compute, run, stage, runner))
    except Exception as error:  # noqa: BLE001  the run fails with it
        # A run that ends stops its tasks, and the next one goes on with those that are left.
        if not (isinstance(error, StoppedError) and run.is_over(stage)):
            run.worker_failed(stage, _explained(stage, error))


def _explained(stage: str, error: Exception) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return named(stage, error)
    return bug(f"stage {stage!r}", Exception(f"{type(error).__name__}: {one_line(error)}"))


def _compute(
    run: JobRun, stage: str, runner: TaskRunner, taken: WholeInput
) -> list[TableUnit] | None:
    operator = run.job.stages[stage].shuffle
    assert operator is not None
    query = operator.query(_inputs(run, stage, operator, taken))
    if query is None:
        return None
    objects = run.workspace.objects
    plan = PlanRun(shuffle_name(run.record, stage), query.stages, objects, runner)
    run.shuffles[stage] = plan
    with BackgroundCleanup(AttemptCleanup(objects)):
        plan.run()
        store = ResultStore(run.payloads, attempt_of(run, stage), operator.rows_per_unit)
        stored = plan.map_results(f"stage {stage} of job {run.job.id}: storing its rows", store)
    return _units(stored)


def _inputs(
    run: JobRun, stage: str, operator: ShuffleOperator, taken: WholeInput
) -> list[Query | None]:
    """Return what each side of the operator reads."""
    upstreams = run.job.upstreams(stage)
    sides = [upstreams] if operator.sides == 1 else [(each,) for each in upstreams]
    found: list[Query | None] = []
    for side in sides:
        messages = [message for upstream in side for message in taken.messages[upstream]]
        label = f"stage {' and '.join(map(repr, side))}"
        declared = run.job.columns(*side)
        scan = scan_messages(messages, label, declared, run.payloads, run.workspace)
        found.append(None if scan is None else Query.scan(scan))
    return found


class StoredRows(NamedTuple):
    """A unit of the result, as a task has stored it."""

    ref: str
    rows: int
    content: str


@dataclass(frozen=True)
class ResultStore:
    """Stores the rows of one task of the last stage of the query. It travels to the tasks."""

    payloads: Payloads
    attempt: str
    rows_per_unit: int

    def __call__(self, rows: pa.Table) -> list[StoredRows]:
        parts = [rows.slice(*part) for part in ranges(rows.num_rows, self.rows_per_unit)]
        refs = self.payloads.put_all(self.attempt, parts)
        return [
            StoredRows(ref, part.num_rows, rows_digest(part))
            for ref, part in zip(refs, parts, strict=True)
        ]


def _units(stored: Sequence[Sequence[StoredRows]]) -> list[TableUnit]:
    """Return the units of a result.

    They are numbered among those of equal rows, so that rows that are the same after a recompute
    are the same unit, whatever else the result holds.
    """
    seen: Counter[str] = Counter()
    units: list[TableUnit] = []
    for each in (each for task in stored for each in task):
        units.append(TableUnit(each.ref, seen[each.content], each.rows, each.content))
        seen[each.content] += 1
    return units
