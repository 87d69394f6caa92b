"""One attempt at a run of a task: members, a query over them, and what it writes to the sink."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import HeadraceError, NotFoundError, UsageError
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.shuffle import Checkpoint
from headrace.spark.gateway_log import silence_thread, without_tracebacks
from headrace.spark.query_failure import explain, is_gone, is_loss
from headrace.spark.sinks.contract import CheckpointId, ReopenableTarget, Target
from headrace.spark.source.dataframes import source_options
from headrace.spark.spark_members import SparkMembers
from headrace.spark.tasks.cut import Cut
from headrace.spark.tasks.lag_watch import LagWatch
from headrace.spark.tasks.progress import Progress, RunTotals
from headrace.spark.tasks.query_logs import committed_checkpoint, open_logs, planned_offset
from headrace.spark.tasks.run_fence import RunFence
from headrace.spark.tasks.run_state import (
    LATE_STARTS_MAX,
    RunState,
    may_query_again,
    root_failure,
)

if TYPE_CHECKING:
    from headrace.spark.tasks.task_definition import Task

_LOOK_S = 1
_MEMBERS_END_S = 1.0
"""How long to wait for members to end if their end would explain that of the query."""

_log = logging.getLogger("headrace")


class RunAttempt:
    """Runs members and a query until either ends."""

    def __init__(
        self,
        task: Task,
        spark: SparkSession,
        fence: RunFence,
        state: RunState,
        totals: RunTotals,
        watch: Callable[[Progress], None],
    ) -> None:
        self._task = task
        self._spark = spark
        self._fence = fence
        self._state = state
        self._totals = totals
        self._watch = watch
        self._history, self._location = open_logs(task.workspace, task.name)
        self._query: StreamingQuery | None = None
        self._lag: LagWatch | None = None
        self._applied = 0
        self._checkpoints: dict[int, tuple[int, Checkpoint]] = {}
        """Checkpoints that are applied and not reported yet, by the number of Spark's batch."""
        self._batches_seen = -1
        self._processes: tuple[int, ...] = ()
        self._applying_failure: BaseException | None = None
        """What the function or the sink raised. Spark would pass on no more than its text."""
        self._members_failure: BaseException | None = None
        """Why the members ended."""

    def run(self, *, once: bool) -> None:
        """Apply checkpoints until the task is to stop; with `once`, until all have been applied."""
        task = self._task
        start = CheckpointId(task.name, self._history.generation, 0)
        self._fence.check()
        with ExitStack() as stack:
            target = stack.enter_context(
                closing(task.sink.open(self._spark, task.workspace, start))
            )
            self._state.open_sink(target.last())
            self._applied = self._state.reached or committed_checkpoint(self._location)
            self._lag = stack.enter_context(self._follow_sources())
            members = stack.enter_context(SparkMembers(self._spark, task.shards))
            self._processes = members.processes
            self.report()
            self._run_queries(target, members, once=once)

    def _run_queries(self, target: Target, members: SparkMembers, *, once: bool) -> None:
        """Run a query until it ends; run it again if Spark did not wait for its source to start.

        In that case nothing was done, so the members stay and the run uses up no restart.
        """
        for late_starts in count(1):
            query = self._query = self._start(target, members, once=once)
            try:
                error = self._watch_query(query, members)
            finally:
                query.stop()
            if error is None:
                return
            # Spark's tasks may report that a member is gone before the driver knows that it ended.
            seems_lost = is_loss(self._applying_failure or explain(error))
            if members.wait_for_end(_MEMBERS_END_S if seems_lost else 0):
                self._members_failure = members.failure()
            if not may_query_again(error, self._members_failure, late_starts):
                raise error
            _log.warning(
                "task %s: this machine is too busy: no process started in the ten seconds that"
                " Spark waits: starting the query again (%d of %d)",
                *(self._task.name, late_starts, LATE_STARTS_MAX),
            )

    def _watch_query(
        self, query: StreamingQuery, members: SparkMembers
    ) -> StreamingQueryException | None:
        """Wait until the query ends or is to be stopped. Return the error that ended it, if any."""
        try:
            while not query.awaitTermination(_LOOK_S):
                self.report()
                if self._task.is_stopping:
                    return None
                if not members.is_alive:
                    # Stopping the query makes its function fail, too. This failure came first.
                    self._members_failure = members.failure()
                    raise self._members_failure
        except StreamingQueryException as error:
            return error
        self.report()
        return query.exception()

    def failure(self, raised: BaseException) -> BaseException:
        """Return what made the attempt fail, when it has raised an error."""
        return root_failure(
            raised,
            applying=self._applying_failure,
            members=self._members_failure,
            is_jvm_gone=is_gone(self._spark),
        )

    def _start(self, target: Target, members: SparkMembers, *, once: bool) -> StreamingQuery:
        task = self._task
        options = source_options(task.workspace, task.bindings) | {
            "task": task.name,
            "members": ",".join(members.addresses),
            "membersToken": members.service.token,
        }
        if task.documents_max is not None:
            options["maxDocumentsPerTrigger"] = str(task.documents_max)
        rows = self._spark.readStream.format("headrace").options(**options).load()

        def apply(batch: DataFrame, number: int) -> None:
            with without_tracebacks():
                try:
                    self._apply(target, batch, number)
                except BaseException as error:
                    self._applying_failure = explain(error)
                    if is_gone(self._spark):
                        silence_thread()
                    raise

        writer = (
            rows.writeStream.queryName(task.name)
            .foreachBatch(apply)
            .option("checkpointLocation", self._location)
        )
        return (writer.trigger(availableNow=True) if once else writer).start()

    def _apply(self, target: Target, rows: DataFrame, batch: int) -> None:
        offset = planned_offset(self._spark, self._location, batch)
        checkpoint = CheckpointId(offset["task"], offset["generation"], offset["checkpoint"])
        self._fence.check()
        last = target.last()
        if last is None or checkpoint.number > last:
            with closing(Cut(rows, self._task.bindings, checkpoint)) as cut:
                output = self._task.function(cut)
                if not isinstance(output, DataFrame):
                    raise UsageError(
                        f"the function of task {self._task.name!r} returned"
                        f" {type(output).__name__}",
                        do="return a DataFrame",
                    )
                self._write(target, output, checkpoint)
        with suppress(HeadraceError):
            # Spark commits the batch after this. Until then its checkpoint is not released.
            self._checkpoints[batch] = checkpoint.number, self._history.delta(checkpoint.number)
        self._state.apply(checkpoint.number)

    def _write(self, target: Target, output: DataFrame, checkpoint: CheckpointId) -> None:
        """Write to the target; write again if the owner of the journals is lost meanwhile.

        The target is opened again with the next owner, and then knows what it holds.
        """
        for _ in range(OWNERS_LOST_MAX):
            try:
                target.write(output, checkpoint)
                return
            except Exception as error:
                if not (isinstance(target, ReopenableTarget) and target.is_lost()):
                    raise
                # If the target refuses this run from here on, no other run has replaced it.
                self._fence.check()
                _log.warning(
                    "task %s: lost the owner of the journals: writing checkpoint %d again",
                    *(self._task.name, checkpoint.number),
                )
                _log.info("the write ended with %s", explain(error))
                target.reopen()
        target.write(output, checkpoint)

    def _follow_sources(self) -> LagWatch:
        """Watch the sources from the applied checkpoint on."""
        try:
            checkpoint = self._history.load(self._applied)
        except NotFoundError:
            checkpoint = self._history.load(self._history.last())
        return LagWatch(self._task.workspace, self._task.bindings, checkpoint)

    def report(self, failure: str = "") -> None:
        """Report how the run stands; `failure` says why it restarts."""
        self._totals.progress = progress = self._progress(failure)
        self._watch(progress)

    def _progress(self, failure: str) -> Progress:
        rate = 0.0
        for each in self._query.recentProgress if self._query else ():
            if each.batchId > self._batches_seen and each.numInputRows:
                self._batches_seen = each.batchId
                self._totals.rows += each.numInputRows
            if each.batchId in self._checkpoints:
                self._was_applied(*self._checkpoints.pop(each.batchId))
            rate = each.processedRowsPerSecond
        return Progress(
            checkpoint=self._applied,
            rows=self._totals.rows,
            rows_per_s=rate,
            behind_bytes=self._lag.bytes() if self._lag else 0,
            shards=self._task.shards,
            restarts=self._state.restarts,
            processes=() if failure else self._processes,
            failure=failure,
            checkpoints=self._totals.checkpoints,
            duration_s=time.monotonic() - self._totals.begin_s,
            output=str(self._task.sink),
        )

    def _was_applied(self, number: int, delta: Checkpoint) -> None:
        self._totals.checkpoints += number > self._applied
        self._applied = max(self._applied, number)
        if self._lag:
            self._lag.apply(delta)
