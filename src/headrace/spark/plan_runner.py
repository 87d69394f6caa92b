"""Runs the tasks of a plan as tasks of Spark: a Spark job for each stage.

Spark starts a task again that fails or whose process died, as a new attempt, and may run two
attempts at once: the exchange publishes the first one that is complete.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark import InheritableThread, cloudpickle
from pyspark.sql import SparkSession

from headrace.errors import StoppedError, UsageError
from headrace.spark.gateway_log import without_tracebacks
from headrace.spark.query_failure import explain_in, is_gone
from headrace.spark.worker_process import bound_to_parent, for_executors, without_traceback

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 0.2


class PlanRunner:
    """Implements `plan_run.TaskRunner` on a Spark session."""

    def __init__(
        self, spark: SparkSession, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Tasks are cancelled once `is_stopping` returns True."""
        if not isinstance(spark, SparkSession):
            raise UsageError(f"{spark!r} is no Spark session", do="give one, or none for threads")
        self._spark = spark
        self._is_stopping = is_stopping

    def run(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return the result of each task. Raises what a task failed with, as often as Spark ran it.

        The Spark job runs in a thread, because a job group belongs to a thread.
        """
        group = f"headrace-plan-{secrets.token_hex(4)}"
        found: list[R] = []
        failures: list[BaseException] = []

        def collect() -> None:
            try:
                found.extend(self._collect(group, what, work, tasks))
            except Exception as error:  # noqa: BLE001  raised where the tasks were asked for
                failures.append(explain_in(self._spark, error))

        thread = InheritableThread(target=collect, name=group, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK_S)
                if self._is_stopping():
                    raise StoppedError(f"{what} was stopped", do="run it again to go on")
        finally:
            # After a stop or Ctrl-C nothing of the tasks goes on.
            if thread.is_alive() and not is_gone(self._spark):
                self._spark.sparkContext.cancelJobGroup(group)
                thread.join()
        for failure in failures:
            raise failure from None
        return found

    def _collect(
        self, group: str, what: str, work: Callable[[T], R], tasks: Sequence[T]
    ) -> Iterator[R]:
        context = self._spark.sparkContext
        with without_tracebacks():
            context.setJobGroup(group, what, True)
            encoded = [_encode(task) for task in tasks]
            rows: Any = context.parallelize(encoded, len(encoded))
            results = rows.mapPartitions(for_executors(_work, work)).collect()
        return map(cloudpickle.loads, results)


def _encode(value: object) -> bytes:
    encoded: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return encoded


def _work(work: Callable[[Any], Any], tasks: Iterable[bytes]) -> Iterator[bytes]:
    """Run tasks, in a worker of Spark."""
    with bound_to_parent(), without_traceback():
        for task in tasks:
            yield _encode(work(cloudpickle.loads(task)))
