"""Runs a plan: stage after stage, each when its parents are complete.

A stage is complete when every one of its tasks has a published output. What is published already,
by this application or an earlier one, is not computed again. Output that a task finds damaged or
missing is computed again by the task that wrote it, as the next generation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.errors import DamagedOutputError, DataError, SchemaError
from headrace.exchange import MapOutputReader, MapOutputWriter, OutputRegistry, PublishedOutput
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
from headrace.storage import Objects

REPAIRS_MAX = 3
"""A run fails if output of one stage is damaged again after it was computed again so often."""

_log = logging.getLogger("headrace")

TaskResult = PublishedOutput | DamagedOutputError


class TaskRunner(Protocol):
    """Runs tasks somewhere, some at once, and again if their process is lost."""

    def run(
        self, stage: PlanStage, work: Callable[[StageTask], TaskResult], tasks: Sequence[StageTask]
    ) -> Iterable[TaskResult]:
        """Return the result of each task, in any order. Raises what a task failed with."""


class SequentialRunner:
    """Runs tasks in this thread, one after another."""

    def run(
        self, stage: PlanStage, work: Callable[[StageTask], TaskResult], tasks: Sequence[StageTask]
    ) -> Iterable[TaskResult]:
        return map(work, tasks)


@dataclass
class StageReport:
    """What became of the tasks of a stage."""

    tasks: int = 0
    reused: int = 0
    """Tasks whose output was there already."""
    computed: int = 0
    repaired: int = 0
    """Tasks that were computed again because their output was damaged."""


@dataclass
class PlanRun:
    """One run of a query, under a name that a later run of the same query gives again."""

    name: str
    graph: StageGraph
    objects: Objects
    runner: TaskRunner = field(default_factory=SequentialRunner)
    reports: dict[int, StageReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.query_id = number_of("query", self.name)
        self._numbers = stage_numbers(self.graph)
        self._registry = OutputRegistry(self.objects)
        self._reader = MapOutputReader(self.objects)
        self._outputs: dict[int, dict[int, PublishedOutput]] = {}
        self._tasks: dict[int, list[StageTask]] = {}
        self.reports = {stage.stage_id: StageReport() for stage in self.graph.stages}

    def run(self) -> list[PublishedOutput]:
        """Run every stage, and return the outputs of the last."""
        for stage in self.graph.stages:
            self._run_stage(stage)
        return list(self._outputs[self.graph.stages[-1].stage_id].values())

    def tables(self) -> Iterable[pa.Table]:
        """Yield the rows of each task of the last stage."""
        for output in self._outputs[self.graph.stages[-1].stage_id].values():
            yield self._reader.read(self._reader.index(output), 0)

    def _run_stage(self, stage: PlanStage) -> None:
        report = self.reports[stage.stage_id]
        for _ in range(REPAIRS_MAX + 1):
            tasks = self._plan(stage)
            report.tasks = len(tasks)
            damages = self._compute(stage, tasks)
            if not damages:
                return
            self._repair(damages)
        raise DataError(
            f"query {self.name!r}: output that stage {stage.stage_id} reads is damaged again and"
            f" again: {damages[0].what}",
            do="check the disk or the bucket that holds it",
        )

    def _plan(self, stage: PlanStage) -> list[StageTask]:
        number = self._numbers[stage.stage_id]
        if stage.scans:
            tasks = scan_tasks(self.query_id, number, stage.scans[0].source.units())
        else:
            found = [self._found(read) for read in stage.reads]
            sizes = [self._sizes(read, each) for read, each in zip(stage.reads, found, strict=True)]
            tasks = reduce_tasks(self.query_id, number, stage, found, sizes)
        self._tasks[stage.stage_id] = tasks
        return tasks

    def _found(self, read: ShuffleRead) -> dict[int, PublishedOutput]:
        return self._outputs[self.graph.producer(read).stage_id]

    def _sizes(self, read: ShuffleRead, outputs: Mapping[int, PublishedOutput]) -> list[int]:
        """Return the bytes of each partition of a shuffle."""
        sizes = [0] * read.input.partitions
        for output in outputs.values():
            for each in self._reader.index(output).partitions:
                sizes[each.reduce_partition] += each.bytes
        return sizes

    def _compute(self, stage: PlanStage, tasks: Sequence[StageTask]) -> list[DamagedOutputError]:
        """Compute what is not published. Return what was found damaged on the way."""
        report = self.reports[stage.stage_id]
        wanted = {task.task.map_task for task in tasks}
        published = self._registry.published(self.query_id, self._numbers[stage.stage_id])
        outputs = {name: each for name, each in published.items() if name in wanted}
        report.reused = max(report.reused, len(outputs)) if not report.computed else report.reused
        damages: list[DamagedOutputError] = []
        left = [task for task in tasks if task.task.map_task not in outputs]
        work = StageWork(stage, self.objects)
        for result in self.runner.run(stage, work, left) if left else ():
            if isinstance(result, DamagedOutputError):
                damages.append(result)
            else:
                outputs[result.map_task] = result
                report.computed += 1
        self._outputs[stage.stage_id] = outputs
        return damages

    def _repair(self, damages: Sequence[DamagedOutputError]) -> None:
        """Compute damaged outputs again, each once, by the stage that wrote them."""
        broken = {(each.stage_id, each.map_task): each for each in damages}
        for (number, name), damage in sorted(broken.items()):
            stage = self.graph.stages[self._numbers.index(number)]
            _log.warning("query %s: computing again: %s", self.name, damage.what)
            task = next(each for each in self._tasks[stage.stage_id] if each.task.map_task == name)
            work = StageWork(stage, self.objects, replaces=damage.attempt)
            for result in self.runner.run(stage, work, [task]):
                if isinstance(result, DamagedOutputError):
                    self._repair([result])
                    self._repair([damage])
                else:
                    self._outputs[stage.stage_id][name] = result
                    self.reports[stage.stage_id].repaired += 1


@dataclass(frozen=True)
class StageWork:
    """What a task of a stage does, in whichever process. It travels there by cloudpickle."""

    stage: PlanStage
    objects: Objects
    replaces: int = 0
    """The attempt whose output is damaged; 0 if the task has no output yet."""

    def __call__(self, task: StageTask) -> TaskResult:
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
        schemas = [schema_of(read) for read in self.stage.reads]
        if not any(schemas) and not any(each.outputs for each in task.reads):
            return None
        reader = MapOutputReader(self.objects)
        return {
            read: _concatenated(reader, read, schema, each)
            for read, schema, each in zip(self.stage.reads, schemas, task.reads, strict=True)
        }

    def _publish(self, task: StageTask, rows: pa.Table) -> PublishedOutput:
        root = self.stage.root
        keys, partitions = (
            (root.keys, root.partitions) if isinstance(root, ShuffleWrite) else ((), 1)
        )
        writer = MapOutputWriter(
            self.objects, task.task, rows.schema, partitions, replaces=self.replaces
        )
        for part in split_rows(rows, keys, partitions):
            writer.write(part.partition, part.rows)
        return writer.publish().output


def _concatenated(
    reader: MapOutputReader, read: ShuffleRead, schema: pa.Schema | None, wanted: MapRange
) -> pa.Table:
    """Return the rows of a partition, of one map task after another."""
    tables = [reader.read(reader.index(each), wanted.partition) for each in wanted.outputs]
    if schema is not None:
        tables.append(schema.empty_table())
    if not tables:
        raise SchemaError(
            f"{read}: no task wrote rows, so its columns are not known",
            do="declare the schema of the function before the shuffle",
        )
    return pa.concat_tables(tables, promote_options="permissive")
