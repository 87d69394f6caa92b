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
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import HeadraceError, UsageError
from headrace.journal.collection import Collection
from headrace.journal.workspace import Workspace
from headrace.shuffle import Binding, History
from headrace.shuffle.binding import resolve
from headrace.shuffle.history import reset_task
from headrace.shuffle.stored import check_task_name
from headrace.spark.about import About, put_about
from headrace.spark.cut import Cut
from headrace.spark.failure import GONE, explain, is_final, is_gone
from headrace.spark.frames import SourceLike, bindings_of, source_options
from headrace.spark.members import SparkMembers
from headrace.spark.offsets import planned_offset
from headrace.spark.restarts import Restarts
from headrace.spark.sessions import activate
from headrace.spark.sinks.collection import CollectionSink
from headrace.spark.sinks.contract import CheckpointId, Sink, Target
from headrace.spark.turns import Turn

_LOOK_S = 1
_log = logging.getLogger("headrace")

Function = Callable[[Cut], DataFrame]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a task stands."""

    checkpoint: int
    """The last that was applied."""
    rows: int
    """Documents read by this run of the task, however often it was started again."""
    rows_per_s: float
    """Of the last micro-batch."""
    behind_bytes: int
    """What members know of and have not read."""
    shards: int
    restarts: int
    processes: tuple[int, ...] = ()
    """Of its members, while they run: ids on the machines that they are on."""
    failure: str = ""
    """Why it was started again, while it is."""


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
            # Spark knows data sources by the session of the thread, and this may be any.
            activate(spark)
            put_about(self.workspace.objects, self.about())
            self._run(spark, once, Restarts(restarts), watch or _ignore)
        finally:
            self._stopping.clear()

    def _run(
        self,
        spark: SparkSession,
        once: bool,
        budget: Restarts,
        watch: Callable[[Progress], None],
    ) -> None:
        turn = Turn(self.workspace.objects, self.name)
        rows = reached = 0
        while not self._stopping.is_set():
            run = _Run(self, spark, turn, budget, watch, rows, reached)
            try:
                run.to_its_end(once=once)
            except Exception as error:
                # Whoever is fenced after this was not replaced: the owner of the journals was.
                turn.check()
                failure = GONE if is_gone(spark) else run.why(error)
                delay_s = None if is_final(failure) else budget.delay_s(progressed=run.progressed)
                if delay_s is None:
                    raise failure from error
                _log.warning(
                    "task %s: %s: starting it again in %.1f s (%d of %d)",
                    *(self.name, failure, delay_s, budget.count, budget.most),
                )
                what = failure.what if isinstance(failure, HeadraceError) else str(failure)
                rows, reached = run.report(failure=what).rows, run.reached
                self._stopping.wait(delay_s)
            else:
                return

    def about(self) -> About:
        return About(
            task=self.name,
            file=_file_of(self.function),
            sources=tuple(each.name or each.collection for each in self.bindings),
            sink=str(self.sink),
            is_exactly_once=self.sink.is_exactly_once,
            shards=self.shards,
        )

    def stop(self) -> None:
        """Let `run`, in another thread, return, or the next one if none runs.

        What it is at is given up, and done by the next run.
        """
        self._stopping.set()

    def reset(self) -> None:
        """Forget how far it is: its next run reads everything again, as another generation."""
        reset_task(self.workspace.objects, self.name)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def __repr__(self) -> str:
        return f"Task({self.name!r}: {', '.join(self.about().sources)} → {self.sink})"


class _Run:
    """Members and a query, until either ends."""

    def __init__(
        self,
        task: Task,
        spark: SparkSession,
        turn: Turn,
        restarts: Restarts,
        watch: Callable[[Progress], None],
        rows: int,
        reached: int,
    ) -> None:
        self._task = task
        self._spark = spark
        self._turn = turn
        self._restarts = restarts
        self._watch = watch
        self._history = History(task.workspace.objects, task.name)
        self._location = checkpoint_location(task.workspace, task.name, self._history.generation)
        self._query: StreamingQuery | None = None
        self.reached = reached
        """The highest checkpoint that was given to the sink: to do it again is no progress."""
        self._applied = 0
        self._checkpoints: dict[int, int] = {}
        """By the number that Spark has for them."""
        self._batches_seen = -1
        self._rows = rows
        self._processes: tuple[int, ...] = ()
        self.progressed = False
        self._cause: BaseException | None = None
        """What the function or the sink raised: Spark would hand on its text only."""
        self._lost: BaseException | None = None
        """Why there are no members any more."""

    def to_its_end(self, *, once: bool) -> None:
        task = self._task
        at = CheckpointId(task.name, self._history.generation, 0)
        self._turn.check()
        with ExitStack() as stack:
            target = stack.enter_context(closing(task.sink.open(self._spark, task.workspace, at)))
            self.reached = max(self.reached, target.last() or 0)
            self._applied = self.reached
            members = stack.enter_context(SparkMembers(self._spark, task.shards))
            self._processes = members.processes
            self.report()
            query = self._start(target, members, once=once)
            stack.callback(query.stop)
            self._query = query
            while not query.awaitTermination(_LOOK_S):
                self.report()
                if task.is_stopping:
                    return
                if not members.is_alive:
                    # To stop the query makes its function fail, too.
                    self._lost = members.failure()
                    raise self._lost
            self.report()
            if (error := query.exception()) is not None:
                self._lost = None if members.is_alive else members.failure()
                raise error

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
            try:
                self._apply(target, batch, number)
            except BaseException as error:
                self._cause = explain(error)
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
        self._turn.check()
        last = target.last()
        if last is None or checkpoint.number > last:
            with closing(Cut(rows, self._task.bindings, checkpoint)) as cut:
                output = self._task.function(cut)
                if not isinstance(output, DataFrame):
                    raise UsageError(
                        f"task {self._task.name!r}: its function returned {type(output).__name__}",
                        do="return a DataFrame",
                    )
                target.write(output, checkpoint)
        self._checkpoints[batch] = checkpoint.number
        self.progressed |= checkpoint.number > self.reached
        self.reached = max(self.reached, checkpoint.number)

    def report(self, failure: str = "") -> Progress:
        progress = self._progress(failure)
        self._watch(progress)
        return progress

    def _progress(self, failure: str) -> Progress:
        rate, behind = 0.0, 0
        for each in self._query.recentProgress if self._query else ():
            if each.batchId > self._batches_seen and each.numInputRows:
                self._batches_seen = each.batchId
                self._rows += each.numInputRows
            self._applied = max(self._applied, self._checkpoints.get(each.batchId, 0))
            rate, behind = each.processedRowsPerSecond, behind_bytes(each)
        return Progress(
            checkpoint=self._applied,
            rows=self._rows,
            rows_per_s=rate,
            behind_bytes=behind,
            shards=self._task.shards,
            restarts=self._restarts.total,
            processes=() if failure else self._processes,
            failure=failure,
        )


def _check_whole(task: str, name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"task {task!r} with {name}={value!r}", do="use a whole number from 1 on")


def _file_of(function: Function) -> str:
    code = getattr(function, "__code__", None)
    return str(Path(code.co_filename).absolute()) if code else ""


def _ignore(progress: Progress) -> None:
    """Nobody watches."""


def checkpoint_location(workspace: Workspace, task: str, generation: str) -> str:
    """Where Spark keeps the offset and commit logs of a task; those of a former one are removed."""
    if workspace.directory is None:
        raise UsageError(
            f"{workspace.place} is known by its address, and tasks run where its directory is",
            do="open it by its directory",
        )
    mine = workspace.directory.absolute() / "tasks" / quote(task, safe="") / generation
    for other in mine.parent.glob("*"):
        if other != mine:
            # Nobody can go on with another generation.
            shutil.rmtree(other, ignore_errors=True)
    # Spark takes what is after the scheme as it stands.
    return f"file://{mine}"


def behind_bytes(progress: StreamingQueryProgress) -> int:
    """What the source reported with its newest offset."""
    reported = msgspec.json.decode(progress.sources[0].latestOffset or "{}")
    return int(reported.get("behind", 0)) if isinstance(reported, dict) else 0


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
