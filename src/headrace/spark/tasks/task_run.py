"""One run of a task: members, a query over them, and what each micro-batch does to the sink."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.backoff import Backoff
from headrace.errors import HeadraceError, NotFoundError, UsageError
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.journal.workspace import Workspace
from headrace.shuffle import Checkpoint, History
from headrace.shuffle.checkpoints.task_keys import logs_path
from headrace.spark.gateway_log import silence_thread, without_tracebacks
from headrace.spark.query_failure import explain, is_final, is_gone, is_late_start, is_loss
from headrace.spark.sinks.contract import CheckpointId, ReopenableTarget, Target
from headrace.spark.source.dataframes import source_options
from headrace.spark.spark_members import SparkMembers
from headrace.spark.tasks.cut import Cut
from headrace.spark.tasks.lag_watch import LagWatch
from headrace.spark.tasks.offset_log import committed_checkpoint, planned_offset
from headrace.spark.tasks.run_fence import RunFence
from headrace.spark.tasks.run_record import local_directory

if TYPE_CHECKING:
    from headrace.spark.tasks.task_definition import Task

_LOOK_S = 1
_WORD_S = 1.0
"""For members whose end explains the query's."""
_LATE_STARTS = 6
"""A minute, in which a machine that is only busy starts a process."""

_log = logging.getLogger("headrace")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a task stands."""

    checkpoint: int
    """The last that was applied."""
    rows: int
    """Documents read by this run of the task, however often it was started again."""
    rows_per_s: float
    """Of the last micro-batch."""
    behind_bytes: int
    """What the sources have beyond that checkpoint: see `shuffle/lag.py`."""
    shards: int
    restarts: int
    processes: tuple[int, ...] = ()
    """Of its members, while they run: ids on the machines that they are on."""
    failure: str = ""
    """Why it was started again, while it is."""
    checkpoints: int = 0
    """How many were applied by this run of the task."""
    duration_s: float = 0.0
    """How long it has been running."""
    output: str = ""
    """Where its rows go."""
    ended: Literal["", "done", "stopped", "failed"] = ""
    """How the run ended, in the last report of it."""


class Total(msgspec.Struct):
    """What a run of a task did, however often it was started again."""

    begin_s: float
    rows: int = 0
    checkpoints: int = 0
    reached: int = 0
    """The highest checkpoint that was given to the sink: to do it again is no progress."""
    progress: Progress | None = None
    """What was reported last."""


class Run:
    """Members and a query, until either ends."""

    def __init__(
        self,
        task: Task,
        spark: SparkSession,
        fence: RunFence,
        backoff: Backoff,
        watch: Callable[[Progress], None],
        total: Total,
    ) -> None:
        self._task = task
        self._spark = spark
        self._fence = fence
        self._backoff = backoff
        self._watch = watch
        self._history, self._location = open_logs(task.workspace, task.name)
        self._query: StreamingQuery | None = None
        self._total = total
        self._lag: LagWatch | None = None
        self._applied = 0
        self._checkpoints: dict[int, tuple[int, Checkpoint]] = {}
        """Those that were applied and not reported yet, by the number that Spark has for them."""
        self._batches_seen = -1
        self._processes: tuple[int, ...] = ()
        self.progressed = False
        self._cause: BaseException | None = None
        """What the function or the sink raised: Spark would hand on its text only."""
        self._lost: BaseException | None = None
        """Why there are no members any more."""

    def to_its_end(self, *, once: bool) -> None:
        task = self._task
        at = CheckpointId(task.name, self._history.generation, 0)
        self._fence.check()
        with ExitStack() as stack:
            target = stack.enter_context(closing(task.sink.open(self._spark, task.workspace, at)))
            self._total.reached = max(self._total.reached, target.last() or 0)
            self._applied = self._total.reached or committed_checkpoint(self._location)
            self._lag = stack.enter_context(self._follow_sources())
            members = stack.enter_context(SparkMembers(self._spark, task.shards))
            self._processes = members.processes
            self.report()
            self._run_queries(target, members, once=once)

    def _run_queries(self, target: Target, members: SparkMembers, *, once: bool) -> None:
        """One query, until it ends: another in its place only if Spark did not wait for its source.

        Nothing has failed then and nothing was done, so members stay and no restart is used up.
        """
        for late in range(1, _LATE_STARTS + 1):
            query = self._query = self._start(target, members, once=once)
            try:
                error = self._watch_query(query, members)
            finally:
                query.stop()
            if error is None:
                return
            # What Spark's tasks say of a member that is gone may come before its end is known.
            seems_lost = is_loss(self._cause or explain(error))
            if members.wait_for_end(_WORD_S if seems_lost else 0):
                self._lost = members.failure()
            if self._lost or not is_late_start(error) or late == _LATE_STARTS:
                raise error
            _log.warning(
                "task %s: this machine is too busy: no process started in the ten seconds that"
                " Spark waits: starting the query again (%d of %d)",
                *(self._task.name, late, _LATE_STARTS),
            )

    def _watch_query(
        self, query: StreamingQuery, members: SparkMembers
    ) -> StreamingQueryException | None:
        """Until it ends or is to be stopped; what it failed with."""
        try:
            while not query.awaitTermination(_LOOK_S):
                self.report()
                if self._task.is_stopping:
                    return None
                if not members.is_alive:
                    # To stop the query makes its function fail, too.
                    self._lost = members.failure()
                    raise self._lost
        except StreamingQueryException as error:
            return error
        self.report()
        return query.exception()

    def why(self, error: BaseException) -> BaseException:
        """What made it fail, of all that failed with it."""
        if self._cause and is_final(self._cause):
            return self._cause
        return self._lost or self._cause or explain(error)

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
                    self._cause = explain(error)
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
                        f"task {self._task.name!r}: its function returned {type(output).__name__}",
                        do="return a DataFrame",
                    )
                self._write(target, output, checkpoint)
        with suppress(HeadraceError):
            # Spark commits a batch after this: until then its checkpoint is not released.
            self._checkpoints[batch] = checkpoint.number, self._history.delta(checkpoint.number)
        self.progressed |= checkpoint.number > self._total.reached
        self._total.reached = max(self._total.reached, checkpoint.number)

    def _write(self, target: Target, output: DataFrame, checkpoint: CheckpointId) -> None:
        """Write to the target; if the owner of the journals is lost meanwhile, write again.

        The target is opened again with the next owner, which tells whether it holds the checkpoint.
        """
        for _ in range(OWNERS_LOST_MAX):
            try:
                target.write(output, checkpoint)
                return
            except Exception as error:
                if not (isinstance(target, ReopenableTarget) and target.is_lost()):
                    raise
                # Whoever is refused after this was not replaced.
                self._fence.check()
                _log.warning(
                    "task %s: lost the owner of the journals: writing checkpoint %d again",
                    *(self._task.name, checkpoint.number),
                )
                _log.info("the write ended with %s", explain(error))
                target.reopen()
        target.write(output, checkpoint)

    def _follow_sources(self) -> LagWatch:
        """From the checkpoint that is applied on."""
        try:
            checkpoint = self._history.load(self._applied)
        except NotFoundError:
            checkpoint = self._history.load(self._history.last())
        return LagWatch(self._task.workspace, self._task.bindings, checkpoint)

    def report(self, failure: str = "") -> None:
        self._total.progress = progress = self._progress(failure)
        self._watch(progress)

    def _progress(self, failure: str) -> Progress:
        rate = 0.0
        for each in self._query.recentProgress if self._query else ():
            if each.batchId > self._batches_seen and each.numInputRows:
                self._batches_seen = each.batchId
                self._total.rows += each.numInputRows
            if each.batchId in self._checkpoints:
                self._was_applied(*self._checkpoints.pop(each.batchId))
            rate = each.processedRowsPerSecond
        return Progress(
            checkpoint=self._applied,
            rows=self._total.rows,
            rows_per_s=rate,
            behind_bytes=self._lag.bytes() if self._lag else 0,
            shards=self._task.shards,
            restarts=self._backoff.retries_total,
            processes=() if failure else self._processes,
            failure=failure,
            checkpoints=self._total.checkpoints,
            duration_s=time.monotonic() - self._total.begin_s,
            output=str(self._task.sink),
        )

    def _was_applied(self, number: int, delta: Checkpoint) -> None:
        self._total.checkpoints += number > self._applied
        self._applied = max(self._applied, number)
        if self._lag:
            self._lag.apply(delta)


def open_logs(workspace: Workspace, task: str) -> tuple[History, str]:
    """The checkpoints of a task, and where Spark has its offset and commit logs of them.

    Those of former generations are removed: nobody can go on with them.
    """
    logs = folder_of_logs(workspace, task)
    # Listed before the generation is looked up: none of these can be of a later one.
    earlier = list(logs.glob("*"))
    history = History(workspace.objects, task)
    for each in earlier:
        if each.name != history.generation:
            shutil.rmtree(each, ignore_errors=True)
    # Spark takes what is after the scheme as it stands.
    return history, f"file://{logs / history.generation}"


def folder_of_logs(workspace: Workspace, task: str) -> Path:
    return local_directory(workspace) / logs_path(task)


def delete_logs(workspace: Workspace, task: str) -> None:
    """Spark's logs of all generations of a task."""
    shutil.rmtree(folder_of_logs(workspace, task), ignore_errors=True)
