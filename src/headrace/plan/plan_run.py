"""Runs a plan: stage after stage, each when its parents are complete.

A stage is complete when every one of its tasks has a published output. What is published already,
by this application or an earlier one, is not computed again. If output turns out to be damaged or
missing, the stages run once more: the task that wrote it is computed again, as the next generation,
and so is every task that reads other rows because of that.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.errors import DamagedOutputError, DataError, SchemaError, StoppedError, UsageError
from headrace.exchange import (
    MapOutputReader,
    MapOutputWriter,
    MapTaskIndex,
    OutputRegistry,
    PinnedStage,
    PublishedOutput,
)
from headrace.exchange.format.part_file import output_schema
from headrace.exchange.inventory import PlannedStage, name_query, store_plan
from headrace.plan.diagram import operator_line
from headrace.plan.kernels import evaluate, schema_of
from headrace.plan.key_columns import split_rows
from headrace.plan.operators import Operator, PlanSink, ShuffleRead, ShuffleWrite
from headrace.plan.stage_tasks import (
    MapRange,
    StageTask,
    number_of,
    reduce_tasks,
    scan_tasks,
    stage_numbers,
)
from headrace.plan.stages import PlanStage, StageGraph
from headrace.plan.unified_columns import fit, unify_columns
from headrace.storage import Objects

REPAIRS_MAX = 3
"""A run fails if the output of one task is damaged again after it was computed again so often."""

_READS_AT_ONCE = 8
_OPERATOR_CHARS_MAX = 120

_log = logging.getLogger("headrace")

T = TypeVar("T")
R = TypeVar("R")

TaskResult = PublishedOutput | DamagedOutputError


class TaskRunner(Protocol):
    """Runs tasks somewhere, some at once, and again if their process is lost."""

    def run(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return the result of each task, in the order of the tasks. `what` tells people of them.

        Raises what a task failed with, and StoppedError if somebody asked for a stop.
        """


class ThreadTaskRunner:
    """Runs tasks in threads of this process."""

    def __init__(self, threads: int = 1, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """No task begins once `is_stopping` returns True."""
        self._threads = threads
        self._is_stopping = is_stopping

    def run(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        def run_one(task: T) -> R:
            if self._is_stopping():
                raise StoppedError(f"{what} was stopped", do="run it again to go on")
            return work(task)

        with ThreadPoolExecutor(self._threads, "headrace-plan") as threads:
            try:
                return list(threads.map(run_one, tasks))
            except BaseException:
                # The tasks that wait would be computed for nothing.
                threads.shutdown(cancel_futures=True)
                raise


@dataclass
class StageReport:
    """What became of the tasks of a stage."""

    tasks: int = 0
    computed: int = 0
    repaired: int = 0
    """Tasks that were computed again because their output was damaged."""

    @property
    def reused(self) -> int:
        """Tasks whose output was there already."""
        return max(0, self.tasks - self.computed)


@dataclass
class PlanRun:
    """One run of a query, under a name that a later run of the same query gives again."""

    name: str
    graph: StageGraph = field(repr=False)
    objects: Objects = field(repr=False)
    runner: TaskRunner = field(default_factory=ThreadTaskRunner, repr=False)
    reports: dict[int, StageReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.query_id = number_of("query", self.name)
        self._numbers = stage_numbers(self.graph)
        self._registry = OutputRegistry(self.objects)
        self._reader = MapOutputReader(self.objects)
        self._indexes: dict[int, list[MapTaskIndex]] = {}
        """The indexes of the outputs of each stage that is complete, in the order of their tasks'
        names."""
        self._damaged: dict[tuple[int, int], int] = {}
        """The attempt that is damaged, by stage number and task: see `StageTask.replaces`."""
        self._repairs: Counter[tuple[int, int]] = Counter()
        self._computed: dict[int, set[int]] = {}
        self.reports = {stage.stage_id: StageReport() for stage in self.graph.stages}

    def __str__(self) -> str:
        tasks, computed, reused, repaired = (
            sum(getattr(each, name) for each in self.reports.values())
            for name in ("tasks", "computed", "reused", "repaired")
        )
        text = f"{self.name}: {tasks} tasks, {computed} computed, {reused} reused"
        return f"{text}, {repaired} repaired" if repaired else text

    def run(self) -> list[MapTaskIndex]:
        """Run every stage, and return the outputs of the last."""
        with self._pinned():
            while damages := self._run_stages():
                self._note(damages)
        return self._indexes[self._last]

    def table(self) -> pa.Table:
        """Return all rows of the last stage, of a run that is complete.

        Computes again what turns out to be damaged.
        """
        if self._last not in self._indexes:
            raise UsageError(f"query {self.name!r} is not complete", do="run it first")
        while True:
            try:
                with self._pinned():
                    return self._read_results()
            except DamagedOutputError as error:
                self._note([error])
                self.run()

    def map_results(self, what: str, function: Callable[[pa.Table], R]) -> list[R]:
        """Call a function with the rows of each task of the last stage, in tasks of the runner.

        The run must be complete. Returns what the function returned for each task that has rows.
        Computes again what turns out to be damaged, and calls the function again for all.
        """
        while True:
            indexes = [each for each in self._indexes[self._last] if each.rows]
            schema = self._result_schema()
            if schema is None or not indexes:
                return []
            with self._pinned():
                work = ResultWork(self.objects, schema, function)
                found = self.runner.run(what, work, indexes)
            damages = [each for each in found if isinstance(each, DamagedOutputError)]
            if not damages:
                return [each for each in found if not isinstance(each, DamagedOutputError)]
            self._note(damages)
            self.run()

    def _read_results(self) -> pa.Table:
        indexes = self._indexes[self._last]
        schema = self._result_schema()
        if schema is None:
            return pa.table({})
        tables = [fit(self._reader.read(index, 0), schema) for index in indexes if index.rows]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _result_schema(self) -> pa.Schema | None:
        root = self.graph.stages[self._last].root
        return _unified_schema(root, None, self._indexes[self._last])

    @property
    def _last(self) -> int:
        return self.graph.stages[-1].stage_id

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """Hold the outputs of all stages, so that cleanup removes nothing that the run reads."""
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        with ExitStack() as stack:
            for number in dict.fromkeys(self._numbers):
                stack.enter_context(PinnedStage(self.objects, self.query_id, number, holder=holder))
            name_query(self.objects, self.query_id, self.name)
            store_plan(self.objects, self.query_id, self._described())
            yield

    def _described(self) -> list[PlannedStage]:
        """Return what each stage does, on a line of bounded length: a scan may name many files."""
        return [
            PlannedStage(
                number,
                " > ".join(
                    shorten(operator_line(each), _OPERATOR_CHARS_MAX, placeholder="...")
                    for each in stage.operators
                ),
            )
            for number, stage in zip(self._numbers, self.graph.stages, strict=True)
        ]

    def _run_stages(self) -> list[DamagedOutputError]:
        """Run what is not complete. Return what was found damaged, and ended the run early."""
        for stage in self.graph.stages:
            if damages := self._run_stage(stage):
                return damages
        return []

    def _run_stage(self, stage: PlanStage) -> list[DamagedOutputError]:
        number = self._numbers[stage.stage_id]
        tasks = {each.task.map_task: each for each in self._plan(stage, number)}
        outputs = self._usable(number, tasks)
        left = [
            replace(task, replaces=self._damaged.get((number, name), 0))
            for name, task in tasks.items()
            if name not in outputs
        ]
        damages: list[DamagedOutputError] = []
        report = self.reports[stage.stage_id]
        computed = self._computed.setdefault(stage.stage_id, set())
        schemas = tuple(self._schema(read) for read in stage.reads)
        work = StageWork(stage, self.objects, schemas)
        what = f"stage {stage.stage_id} of query {self.name}: {stage.root}"
        for result in self.runner.run(what, work, left) if left else ():
            if isinstance(result, DamagedOutputError):
                damages.append(result)
            else:
                outputs[result.map_task] = result
                computed.add(result.map_task)
                report.repaired += (number, result.map_task) in self._damaged
        report.tasks, report.computed = len(tasks), len(computed & tasks.keys())
        return damages or self._load_indexes(stage, [outputs[name] for name in sorted(outputs)])

    def _plan(self, stage: PlanStage, number: int) -> list[StageTask]:
        if stage.scans:
            return scan_tasks(self.query_id, number, stage.scans[0].source.units())
        return reduce_tasks(
            self.query_id, number, stage, [self._written(read) for read in stage.reads]
        )

    def _written(self, read: ShuffleRead) -> list[MapTaskIndex]:
        return self._indexes[self.graph.producer(read).stage_id]

    def _schema(self, read: ShuffleRead) -> pa.Schema | None:
        return _unified_schema(read, schema_of(read), self._written(read))

    def _usable(self, number: int, tasks: Iterable[int]) -> dict[int, PublishedOutput]:
        """Return the published outputs of the tasks, but for those that are known to be damaged."""
        found = self._registry.find(self.query_id, number)
        return {
            name: output
            for name in tasks
            if isinstance(output := found.get(name), PublishedOutput)
            and self._damaged.get((number, name)) != output.attempt
        }

    def _load_indexes(
        self, stage: PlanStage, outputs: Sequence[PublishedOutput]
    ) -> list[DamagedOutputError]:
        """Read the index of each output of a stage. Return an error for each that is damaged."""

        def load(output: PublishedOutput) -> MapTaskIndex | DamagedOutputError:
            try:
                return self._reader.index(output)
            except DamagedOutputError as error:
                return error

        with ThreadPoolExecutor(_READS_AT_ONCE, "headrace-plan") as threads:
            found = list(threads.map(load, outputs))
        self._indexes[stage.stage_id] = [each for each in found if isinstance(each, MapTaskIndex)]
        return [each for each in found if isinstance(each, DamagedOutputError)]

    def _note(self, damages: Sequence[DamagedOutputError]) -> None:
        """Remember what to compute again. Raises DataError if that did not help often enough."""
        for each in damages:
            place = each.stage_id, each.map_task
            if self._damaged.get(place) == each.attempt:
                continue
            _log.warning("query %s: computing again: %s", self.name, each.what)
            self._damaged[place] = each.attempt
            self._repairs[place] += 1
            if self._repairs[place] > REPAIRS_MAX:
                stage = self._numbers.index(each.stage_id)
                raise DataError(
                    f"query {self.name!r}: output of stage {stage} is damaged again and again:"
                    f" {each.what}",
                    do="check the disk or the bucket that holds it",
                )


@dataclass(frozen=True)
class StageWork:
    """What a task of a stage does, in whichever process. It travels there by cloudpickle."""

    stage: PlanStage
    objects: Objects
    schemas: tuple[pa.Schema | None, ...] = ()
    """The columns of each shuffle read; None if no task wrote any and none are declared."""

    def __call__(self, task: StageTask) -> TaskResult:
        published = OutputRegistry(self.objects).claimable(task.task, task.replaces)
        if published is not None:
            return published
        try:
            given = self._read(task)
        except DamagedOutputError as error:
            return error
        root = self.stage.root
        if given is None:
            return self._publish(task, pa.table({}))
        rows = evaluate(root.input if isinstance(root, PlanSink) else root, given)
        if isinstance(root, PlanSink):
            root.sink(rows, f"{task.task.map_task:016x}")
        return self._publish(task, rows)

    def _read(self, task: StageTask) -> dict[Operator, pa.Table] | None:
        """Return what the task reads; None if there are neither rows nor known columns."""
        if task.unit is not None:
            return {self.stage.scans[0]: task.unit.read()}
        if not any(self.schemas):
            return None
        reader = MapOutputReader(self.objects)
        return {
            read: _concatenated(reader, read, schema, each)
            for read, schema, each in zip(self.stage.reads, self.schemas, task.reads, strict=True)
        }

    def _publish(self, task: StageTask, rows: pa.Table) -> PublishedOutput:
        root = self.stage.root
        keys, partitions = (
            (root.keys, root.partitions) if isinstance(root, ShuffleWrite) else ((), 1)
        )
        writer = MapOutputWriter(
            self.objects, task.task, rows.schema, partitions, replaces=task.replaces
        )
        for part in split_rows(rows, keys, partitions):
            writer.write(part.partition, part.rows)
        return writer.publish().output


@dataclass(frozen=True)
class ResultWork(Generic[R]):
    """Hands the rows of a task of the last stage to a function. It travels as `StageWork` does."""

    objects: Objects
    schema: pa.Schema
    function: Callable[[pa.Table], R]

    def __call__(self, index: MapTaskIndex) -> R | DamagedOutputError:
        try:
            rows = MapOutputReader(self.objects).read(index, 0)
        except DamagedOutputError as error:
            return error
        return self.function(fit(rows, self.schema))


def _concatenated(
    reader: MapOutputReader, read: ShuffleRead, schema: pa.Schema | None, wanted: MapRange
) -> pa.Table:
    """Return the rows of a partition, of one map task after another."""
    if schema is None:
        raise SchemaError(
            f"{read}: no task wrote rows, so its columns are not known",
            do="declare the schema of the function before the shuffle",
        )
    tables = [fit(reader.read_part(*part), schema) for part in wanted.parts]
    return pa.concat_tables([schema.empty_table(), *tables])


def _unified_schema(
    operator: Operator, declared: pa.Schema | None, indexes: Sequence[MapTaskIndex]
) -> pa.Schema | None:
    """Return columns that hold the rows of all outputs; None if none are known."""
    by_schema = {each.schema: each for each in indexes}
    found = [output_schema(each) for each in by_schema.values()]
    if declared is not None:
        found.append(declared)
    known = [each for each in found if each.names]
    return unify_columns(known, operator) if known else None
