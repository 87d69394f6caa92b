"""Tasks: a function of one cut, run for checkpoint after checkpoint, whose output is applied once.

The order that makes it exact, for every micro-batch:

1. the checkpoint is stored, put if absent (the source, when Spark asks for the next offset);
2. Spark writes its number to the offset log;
3. the function's rows are written to the sink, and become visible there together with the number;
4. Spark writes the batch to its commit log; only then is anything released.

A run that is killed between any two finds on its next start what is done: the checkpoint is the
one that was stored, and the sink says whether it has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace.backoff import Backoff
from headrace.errors import HeadraceError, UsageError
from headrace.journal.collection import Collection
from headrace.journal.workspace import Workspace
from headrace.shuffle import Binding
from headrace.shuffle.binding import SourceLike, bindings_of, resolve
from headrace.shuffle.checkpoints.checkpoint_history import has_checkpoints, reset_task
from headrace.shuffle.checkpoints.task_keys import check_task_name
from headrace.spark.gateway_log import silence_accumulators, without_tracebacks
from headrace.spark.query_failure import GONE, is_final, is_gone, one_line_if_gone
from headrace.spark.sinks.collection_sink import CollectionSink
from headrace.spark.sinks.contract import Sink
from headrace.spark.spark_session import activate
from headrace.spark.tasks.cut import Cut
from headrace.spark.tasks.run_fence import RunFence
from headrace.spark.tasks.run_record import RunRecorder, check_not_running, forget_runs
from headrace.spark.tasks.run_summary import say, summary
from headrace.spark.tasks.task_record import TaskRecord, get_task_record, put_task_record
from headrace.spark.tasks.task_run import Progress, Run, Total

_RESTART_S = 0.5
_RESTART_S_MAX = 30.0

_log = logging.getLogger("headrace")

Function = Callable[[Cut], DataFrame]


class Task:
    """Made by `derivation` and `materialization`. Whoever runs it last takes it over."""

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
            raise UsageError(f"task {name!r} of {workspace!r}", do="give it what hr.open returned")
        if not callable(function):
            raise UsageError(f"task {name!r} is {function!r}", do="give it a function")
        if not hasattr(sink, "is_exactly_once"):
            raise UsageError(
                f"task {name!r} has a sink of type {type(sink).__name__}",
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

        A run that fails is started again, `restarts` times without anything done in between; not
        one that another process has taken over.
        """
        resolve(self.bindings, {each.name: each for each in self.workspace.collections()}, {})
        try:
            with without_tracebacks(), one_line_if_gone(spark):
                silence_accumulators(spark)
                # Spark knows data sources by the session of the thread, and this may be any.
                activate(spark)
                self.register()
                backoff = Backoff(restarts, first_s=_RESTART_S, longest_s=_RESTART_S_MAX)
                self._run(spark, once, backoff, watch or self._print_summary)
        finally:
            self._stopping.clear()

    def _print_summary(self, progress: Progress) -> None:
        if progress.ended:
            say(summary(self.name, progress))

    def register(self) -> None:
        """Make it known to its workspace, as each run does: `headrace task list` shows it."""
        objects = self.workspace.objects
        if get_task_record(objects, self.name) is None and has_checkpoints(objects, self.name):
            raise UsageError(
                f"{self.name!r} is the name of a stream, which has checkpoints of its own",
                do="name the task otherwise, or reset it first",
            )
        put_task_record(objects, self.about())

    def _run(
        self,
        spark: SparkSession,
        once: bool,
        backoff: Backoff,
        watch: Callable[[Progress], None],
    ) -> None:
        total = Total(begin_s=time.monotonic())
        fence = RunFence(self.workspace.objects, self.name)
        with RunRecorder(self.workspace, self.name, fence.number, self.stop) as record:

            def report(progress: Progress) -> None:
                record.report(progress)
                watch(progress)

            try:
                self._repeat(spark, once, fence, backoff, report, total)
            except BaseException as error:
                is_failure = isinstance(error, Exception)
                record.end(error if is_failure else None)
                _report_end(watch, total, "failed" if is_failure else "stopped")
                raise
            record.end(None)
            _report_end(watch, total, "stopped" if self.is_stopping else "done")

    def _repeat(
        self,
        spark: SparkSession,
        once: bool,
        fence: RunFence,
        backoff: Backoff,
        watch: Callable[[Progress], None],
        total: Total,
    ) -> None:
        """Start it again after each failure that this may mend."""
        while not self._stopping.is_set():
            run = Run(self, spark, fence, backoff, watch, total)
            try:
                run.to_its_end(once=once)
            except Exception as error:
                # Whoever is fenced after this was not replaced: the owner of the journals was.
                fence.check()
                failure = GONE if is_gone(spark) else run.why(error)
                if run.progressed:
                    backoff.reset()
                delay_s = None if is_final(failure) else backoff.next_delay_s()
                if delay_s is None:
                    raise failure from error
                _log.warning(
                    "task %s: %s: starting it again in %.1f s (%d of %d)",
                    *(self.name, failure, delay_s, backoff.retries, backoff.retries_max),
                )
                what = failure.what if isinstance(failure, HeadraceError) else str(failure)
                run.report(failure=what)
                self._stopping.wait(delay_s)
            else:
                return

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
        """Let `run`, in another thread, return, or the next one if none runs.

        What it is at is given up, and done by the next run.
        """
        self._stopping.set()

    def reset(self) -> None:
        """Forget how far it is: its next run reads everything again, as another generation.

        Refused while it runs.
        """
        check_not_running(self.workspace, self.name)
        reset_task(self.workspace.objects, self.name)
        if self.workspace.directory:
            forget_runs(self.workspace, self.name)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def __repr__(self) -> str:
        return f"Task({self.name!r}: {', '.join(self.about().sources)} → {self.sink})"


def _check_whole(task: str, name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"task {task!r} with {name}={value!r}", do="use a whole number from 1 on")


def _file_of(function: Function) -> str:
    code = getattr(function, "__code__", None)
    return str(Path(code.co_filename).absolute()) if code else ""


def _report_end(
    watch: Callable[[Progress], None], total: Total, how: Literal["done", "stopped", "failed"]
) -> None:
    """The last report of a run that had any."""
    if total.progress:
        seconds = time.monotonic() - total.begin_s
        watch(msgspec.structs.replace(total.progress, ended=how, failure="", duration_s=seconds))


def materialization(
    workspace: Workspace,
    *,
    sources: Sequence[SourceLike],
    sink: Sink,
    name: str = "",
    shards: int = 2,
    documents_max: int | None = None,
) -> Callable[[Function], Task]:
    """Make a task of a function: the DataFrame that it makes of a cut goes to the sink.

    It is named like the function, and read by `shards` members. A checkpoint has about
    `documents_max` documents at most.
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
    """Make a task of a function: the DataFrame that it makes of a cut is published to `to`."""
    if not isinstance(to, str | Collection):
        raise UsageError(
            f"a derivation to {to!r}", do="name a collection, or give what ws.collection returned"
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
