"""Runs the workers of a job as Spark tasks: a Spark job for each stage, all at once if they fit.

Spark starts a task again whose process died. If Spark gives the Spark job up, the runner starts it
again. A worker that was lost leaves nothing behind that its successor does not find: see
`headrace.pipeline`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import InheritableThread, TaskContext
from pyspark.sql import SparkSession

from headrace.errors import PeerLostError
from headrace.pipeline.contract import RunControl, StagePlan, WorkerAssignment
from headrace.spark.gateway_log import without_tracebacks
from headrace.spark.pipelines.slot_shares import SLOTS, describe, share_alone, share_slots
from headrace.spark.pipelines.task_resources import TaskResources
from headrace.spark.query_failure import explain_in, is_final, is_gone
from headrace.spark.slots import slots_for_workers
from headrace.spark.worker_process import bound_to_parent, for_executors, without_traceback

FAILURES_MAX = 10
"""The run fails if the Spark job of a stage fails so often, each time soon after its start."""
_SOON_S = 60.0
_PAUSE_S = 0.2

_log = logging.getLogger("headrace")


class SparkRunner:
    """Runs the workers of one run."""

    def __init__(self, spark: SparkSession, job: str) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._job = job
        self._group = f"headrace-{job}-{secrets.token_hex(4)}"
        self._resources = TaskResources(spark, job)
        self._ended = threading.Event()

    def run(self, control: RunControl, plans: Sequence[StagePlan]) -> None:
        """Return when these stages are over."""
        plans = [plan for plan in plans if not control.is_over(plan.stage)]
        if not plans:
            return
        needs = {plan.stage: self._resources.needs(plan) for plan in plans}
        wanted = sum(int(need.workers * need.each[SLOTS]) for need in needs.values())
        capacity = self._resources.capacity(plans)
        with slots_for_workers(self._spark, wanted) as slots:
            capacity[SLOTS] = slots
            shares = share_slots(needs, capacity)
            alone = {stage: share_alone(stage, needs[stage], capacity) for stage in needs}
            if line := describe(self._job, needs, shares, capacity):
                _log.warning("%s", line)
            control.run_in_turn([] if shares else list(needs))
            with self._ending():
                if shares is None:
                    self._run_in_turn(control, plans, alone)
                else:
                    self._run_at_once(control, plans, shares)

    def run_alone(self, stage: str, work: Callable[[str], None]) -> None:
        """Run the Spark jobs of a stage that has no workers; `work` gets their job group."""
        with self._ending():
            _in_thread(stage, work, self._group)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Cancel what is left of the Spark jobs at the end of the block."""
        self._ended.clear()
        try:
            yield
        finally:
            self._ended.set()
            if not is_gone(self._spark):
                self._context.cancelJobGroup(self._group)

    def _run_at_once(
        self, control: RunControl, plans: Sequence[StagePlan], shares: Mapping[str, int]
    ) -> None:
        threads = [
            InheritableThread(
                target=self._keep_running,
                args=(control, plan, shares[plan.stage]),
                name=f"headrace-{plan.stage}",
                daemon=True,
            )
            for plan in plans
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep_running(self, control: RunControl, plan: StagePlan, workers: int) -> None:
        attempts = _Attempts()
        while not control.is_over(plan.stage) and not self._ended.is_set():
            if not self._run_stage(control, plan, workers, attempts):
                return
            time.sleep(0 if control.is_over(plan.stage) else _PAUSE_S)

    def _run_in_turn(
        self, control: RunControl, plans: Sequence[StagePlan], workers: Mapping[str, int]
    ) -> None:
        """Run stages one after another, again and again, until all are over."""
        attempts = {plan.stage: _Attempts() for plan in plans}
        while left := [plan for plan in plans if not control.is_over(plan.stage)]:
            for plan in left:
                stage = plan.stage
                _in_thread(stage, self._run_stage, control, plan, workers[stage], attempts[stage])
            time.sleep(_PAUSE_S)

    def _run_stage(
        self, control: RunControl, plan: StagePlan, workers: int, attempts: _Attempts
    ) -> bool:
        """Run one Spark job. Return False if the run has failed."""
        begin_s = time.monotonic()
        try:
            with without_tracebacks():
                self._run_spark_job(control.remote_assignment(plan.stage), plan, workers)
        except Exception as error:  # noqa: BLE001  it is explained, and ends the run
            cause = explain_in(self._spark, error)
            if control.is_over(plan.stage) or self._ended.is_set():
                return True
            is_lost = isinstance(cause, PeerLostError) and not is_final(cause)
            if is_lost and attempts.may_start_again(time.monotonic() - begin_s):
                _log.warning("job %s: starting stage %s again: %s", self._job, plan.stage, cause)
                return True
            control.worker_failed(plan.stage, cause)
            return False
        return True

    def _run_spark_job(self, assignment: WorkerAssignment, plan: StagePlan, workers: int) -> None:
        context = self._context
        context.setJobGroup(
            self._group, f"stage {plan.stage} of job {self._job}", interruptOnCancel=True
        )
        context.setLocalProperty("spark.scheduler.pool", f"headrace-{plan.stage}")
        tasks: Any = context.parallelize(range(workers), workers)
        if profile := self._resources.profile(plan):
            tasks = tasks.withResources(profile)
        tasks.mapPartitions(for_executors(_work, assignment)).count()


def _in_thread(stage: str, work: Callable[..., object], *arguments: object) -> None:
    """Run in a thread, because a job group belongs to a thread, and wait until it ends."""
    thread = InheritableThread(target=work, args=arguments, name=f"headrace-{stage}", daemon=True)
    thread.start()
    thread.join()


class _Attempts:
    """Counts the Spark jobs of one stage that failed soon after they began."""

    def __init__(self) -> None:
        self._failures = 0

    def may_start_again(self, lasted_s: float) -> bool:
        self._failures = self._failures + 1 if lasted_s < _SOON_S else 1
        return self._failures < FAILURES_MAX


def _work(assignment: WorkerAssignment, numbers: Iterable[int]) -> Iterator[int]:
    """Be a worker, in a task of Spark."""
    (number,) = numbers
    task = TaskContext.get()
    attempt = task.attemptNumber() if task else 0
    name = f"{assignment.stage}.{number}.{attempt}.{secrets.token_hex(4)}"
    with bound_to_parent(), without_traceback():
        assignment.run(name)
    return iter(())
