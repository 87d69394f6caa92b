"""Runs the tasks of a plan as tasks of Spark: a Spark job for each stage.

Spark starts a task again that fails or whose process died, as a new attempt, and may run two
attempts at once: the exchange publishes the first one that is complete.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import InheritableThread, cloudpickle
from pyspark.sql import SparkSession

from headrace.plan.plan_run import TaskResult
from headrace.plan.stage_tasks import StageTask
from headrace.plan.stages import PlanStage
from headrace.spark.gateway_log import without_tracebacks
from headrace.spark.query_failure import explain_in, is_gone
from headrace.spark.worker_process import bound_to_parent, for_executors, without_traceback


class PlanRunner:
    """Implements `plan_run.TaskRunner` on a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(
        self, stage: PlanStage, work: Callable[[StageTask], TaskResult], tasks: Sequence[StageTask]
    ) -> Iterable[TaskResult]:
        """Return the result of each task. Raises what a task failed with, as often as Spark ran it.

        The Spark job runs in a thread, because a job group belongs to a thread.
        """
        group = f"headrace-plan-{secrets.token_hex(4)}"
        found: list[TaskResult | BaseException] = []
        thread = InheritableThread(
            target=self._collect,
            args=(group, stage, work, tasks, found),
            name=group,
            daemon=True,
        )
        thread.start()
        try:
            thread.join()
        finally:
            # After Ctrl-C nothing of the stage goes on.
            if thread.is_alive() and not is_gone(self._spark):
                self._spark.sparkContext.cancelJobGroup(group)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, TaskResult):
                raise each from None
        return [each for each in found if isinstance(each, TaskResult)]

    def _collect(
        self,
        group: str,
        stage: PlanStage,
        work: Callable[[StageTask], TaskResult],
        tasks: Sequence[StageTask],
        found: list[TaskResult | BaseException],
    ) -> None:
        context = self._spark.sparkContext
        try:
            with without_tracebacks():
                context.setJobGroup(group, f"stage {stage.stage_id}: {stage.root}", True)
                encoded = [_encode(task) for task in tasks]
                rows: Any = context.parallelize(encoded, len(encoded))
                results = rows.mapPartitions(for_executors(_work, work)).collect()
            found += map(cloudpickle.loads, results)
        except Exception as error:  # noqa: BLE001  raised where the tasks were asked for
            found.append(explain_in(self._spark, error))


def _encode(value: object) -> bytes:
    encoded: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return encoded


def _work(work: Callable[[StageTask], TaskResult], tasks: Iterable[bytes]) -> Iterator[bytes]:
    """Run tasks, in a worker of Spark."""
    with bound_to_parent(), without_traceback():
        for task in tasks:
            yield _encode(work(cloudpickle.loads(task)))
