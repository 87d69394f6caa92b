"""Tasks: a function of one cut that runs for each checkpoint and whose output is applied once.

Every micro-batch takes these steps, in this order:

1. the source stores the checkpoint, put if absent, when Spark asks for the next offset;
2. Spark writes the checkpoint's number to its offset log;
3. the sink makes the function's rows visible together with the number;
4. Spark writes the batch to its commit log, and only then is anything released.

If a run is killed between any two steps, the next run finds out what is done: the checkpoint is the
one that was stored, and the sink says whether it holds it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import HeadraceError, UsageError
from headrace.journal.collection import Collection
from headrace.journal.workspace import Workspace
from headrace.shuffle import Binding
from headrace.shuffle.binding import SourceLike, bindings_of, resolve
from headrace.shuffle.checkpoints.checkpoint_history import has_checkpoints, reset_task
from headrace.shuffle.checkpoints.task_keys import check_task_name
from headrace.spark.gateway_log import silence_accumulators, without_tracebacks
from headrace.spark.query_failure import one_line_if_gone
from headrace.spark.sinks.collection_sink import CollectionSink
from headrace.spark.sinks.contract import Sink
from headrace.spark.spark_session import activate
from headrace.spark.tasks.cut import Cut
from headrace.spark.tasks.progress import Progress, RunTotals, print_line, summary
from headrace.spark.tasks.run_fence import RunFence
from headrace.spark.tasks.run_record import RunRecorder, check_not_running, forget_runs
from headrace.spark.tasks.run_state import RunEnd, RunState, run_end
from headrace.spark.tasks.task_record import TaskRecord, get_task_record, put_task_record
from headrace.spark.tasks.task_run import RunAttempt

_log = logging.getLogger("headrace")

Function = Callable[[Cut], DataFrame]


class Task:
    """A function with its sources and its sink; see `derivation` and `materialization`.

    The process that runs a task last takes it over from all others.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        function: Function,
        bindings: Sequence[Binding],
        sink: Sink,
        *,
        shards: int = 2,
        documents_max: int | None = None,
    ) -> None:
        _check_whole(name, "shards", shards)
        if documents_max is not None:
            _check_whole(name, "documents_max", documents_max)
        if isinstance(workspace, str | Path):
            raise UsageError(
                f"task {name!r} was given {workspace!r} instead of a workspace",
                do="give it what hr.open returned",
            )
        if not callable(function):
            raise UsageError(
                f"task {name!r} was given {function!r} instead of a function",
                do="give it a function",
            )
        if not hasattr(sink, "is_exactly_once"):
            raise UsageError(
                f"task {name!r} was given a sink of type {type(sink).__name__}",
                do="use hr.parquet(…), hr.jdbc(…), hr.foreach_batch(…) or hr.writer(…)",
            )
        self.workspace = workspace
        self.name = check_task_name(name)
        self.bindings = tuple(bindings)
        self.sink = sink
        self.shards = shards
        self.documents_max = documents_max
        self.function = function
        self._stopping = threading.Event()

    def run(
        self,
        spark: SparkSession,
        *,
        once: bool = False,
        restarts: int = 5,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        """Apply checkpoint after checkpoint until stopped; `once`: what is committed by now.

        After a failure the task is started again, up to `restarts` times without progress in
        between, but not if another process has taken it over. `watch` is called with the progress
        about once a second and once at the end; without it, the end is printed.
        """
        resolve(self.bindings, {each.name: each for each in self.workspace.collections()}, {})
        try:
            with without_tracebacks(), one_line_if_gone(spark):
                silence_accumulators(spark)
                # Spark looks data sources up in the session of the thread, which may be another.
                activate(spark)
                self.register()
                self._run(spark, once, RunState(restarts), watch or self._print_summary)
        finally:
            self._stopping.clear()

    def _print_summary(self, progress: Progress) -> None:
        if progress.ended:
            print_line(summary(self.name, progress))

    def register(self) -> None:
        """Store the task's record, as each run does, so that `headrace task list` shows it."""
        objects = self.workspace.objects
        if get_task_record(objects, self.name) is None and has_checkpoints(objects, self.name):
            raise UsageError(
                f"{self.name!r} is the name of a stream, which has checkpoints of its own",
                do="give the task another name, or reset the stream first",
            )
        put_task_record(objects, self.about())

    def _run(
        self, spark: SparkSession, once: bool, state: RunState, watch: Callable[[Progress], None]
    ) -> None:
        totals = RunTotals(begin_s=time.monotonic())
        fence = RunFence(self.workspace.objects, self.name)
        with RunRecorder(self.workspace, self.name, fence.number, self.stop) as recorder:

            def report(progress: Progress) -> None:
                recorder.report(progress)
                watch(progress)

            def end(error: BaseException | None) -> None:
                how = run_end(error, is_stopping=self.is_stopping)
                recorder.end(error if how == "failed" else None)
                _report_end(watch, totals, how)

            try:
                self._repeat(spark, once, fence, state, totals, report)
            except BaseException as error:
                end(error)
                raise
            end(None)

    def _repeat(
        self,
        spark: SparkSession,
        once: bool,
        fence: RunFence,
        state: RunState,
        totals: RunTotals,
        watch: Callable[[Progress], None],
    ) -> None:
        """Make one attempt after the other, as long as `state` says that another may help."""
        while not self._stopping.is_set():
            attempt = RunAttempt(self, spark, fence, state, totals, watch)
            try:
                attempt.run(once=once)
                return
            except Exception as error:
                # If a fence refused this run and this passes, it was that of the journals' owner.
                fence.check()
                failure = attempt.failure(error)
                restart = state.fail(failure)
                if restart is None:
                    raise failure from error
                _log.warning(
                    "task %s: %s: starting it again in %.1f s (%d of %d)",
                    *(self.name, failure, *restart),
                )
                what = failure.what if isinstance(failure, HeadraceError) else str(failure)
                attempt.report(failure=what)
                self._stopping.wait(restart.delay_s)

    def about(self) -> TaskRecord:
        return TaskRecord(
            task=self.name,
            file=_file_of(self.function),
            sources=tuple(each.name or each.collection for each in self.bindings),
            sink=str(self.sink),
            is_exactly_once=self.sink.is_exactly_once,
            shards=self.shards,
            bindings=self.bindings,
        )

    def stop(self) -> None:
        """Make `run` return in another thread, or the next `run` if none is active.

        The task gives up the micro-batch that it is at; the next run does it again.
        """
        self._stopping.set()

    def reset(self) -> None:
        """Forget how far the task is: its next run reads everything again, as a new generation.

        Raises UsageError while the task runs.
        """
        check_not_running(self.workspace, self.name)
        reset_task(self.workspace.objects, self.name)
        if self.workspace.directory:
            forget_runs(self.workspace, self.name)

    @property
    def is_stopping(self) -> bool:
        """True from `stop` until the run has returned."""
        return self._stopping.is_set()

    def __repr__(self) -> str:
        return f"Task({self.name!r}: {', '.join(self.about().sources)} → {self.sink})"


def _check_whole(task: str, name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise UsageError(
            f"{name} of task {task!r} must be at least 1, got {value!r}", do="use a whole number"
        )


def _file_of(function: Function) -> str:
    code = getattr(function, "__code__", None)
    return str(Path(code.co_filename).absolute()) if code else ""


def _report_end(watch: Callable[[Progress], None], totals: RunTotals, how: RunEnd) -> None:
    """Report how a run ended, unless it ended before its first report."""
    if totals.progress:
        seconds = time.monotonic() - totals.begin_s
        watch(msgspec.structs.replace(totals.progress, ended=how, failure="", duration_s=seconds))


def materialization(
    workspace: Workspace,
    *,
    sources: Sequence[SourceLike],
    sink: Sink,
    name: str = "",
    shards: int = 2,
    documents_max: int | None = None,
) -> Callable[[Function], Task]:
    """Make a task of a function: the DataFrame that it returns for a cut goes to the sink.

    The task has the function's name unless `name` is given. `shards` members read its sources. A
    checkpoint has about `documents_max` documents at most.
    """

    def make(function: Function) -> Task:
        return Task(
            workspace,
            name or getattr(function, "__name__", ""),
            function,
            bindings_of(sources),
            sink,
            shards=shards,
            documents_max=documents_max,
        )

    return make


def derivation(
    workspace: Workspace,
    *,
    sources: Sequence[SourceLike],
    to: Collection | str,
    name: str = "",
    shards: int = 2,
    documents_max: int | None = None,
) -> Callable[[Function], Task]:
    """Make a task of a function: the DataFrame that it returns for a cut is published to `to`."""
    if not isinstance(to, str | Collection):
        raise UsageError(
            f"a derivation cannot publish to {to!r}",
            do="name a collection, or give what ws.collection returned",
        )
    sink = CollectionSink(to if isinstance(to, str) else to.name)
    return materialization(
        workspace,
        sources=sources,
        sink=sink,
        name=name,
        shards=shards,
        documents_max=documents_max,
    )
