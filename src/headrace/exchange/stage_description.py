"""What is stored of the stages of a query, map task by map task, for whoever looks at it."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from headrace.errors import DamagedOutputError, VersionError
from headrace.exchange.cleanup.cleanup_plan import TaskObjects, group_by_task
from headrace.exchange.format.layout import MapTask, MapTaskIndex, query_directory
from headrace.exchange.format.publication import PublishedOutput
from headrace.exchange.map_output_reader import MapOutputReader
from headrace.exchange.output_registry import OutputRegistry
from headrace.storage import Objects

_READS_AT_ONCE = 8


@dataclass(frozen=True)
class TaskDescription:
    """What is stored of one map task."""

    task: MapTask
    attempts: tuple[int, ...]
    """The attempts that have files, published or not."""
    bytes: int
    """The size of the files of all attempts."""
    output: PublishedOutput | None
    """What readers see; None if nothing is published, or if its record cannot be read."""
    index: MapTaskIndex | None
    """What the output holds; None without an output, or if its index cannot be read."""
    error: DamagedOutputError | VersionError | None
    """Why the record or the index cannot be read."""


class Skew(NamedTuple):
    """How the bytes of a stage divide among its reduce partitions."""

    largest: int
    """The number of the largest partition."""
    largest_bytes: int
    median_bytes: float

    @property
    def factor(self) -> float | None:
        """How many times as large as the median the largest is; None if the median is empty."""
        return self.largest_bytes / self.median_bytes if self.median_bytes else None


@dataclass(frozen=True)
class StageDescription:
    """What is stored of one stage, its map tasks by number."""

    query_id: int
    stage_id: int
    tasks: tuple[TaskDescription, ...]

    @property
    def published(self) -> int:
        return sum(each.output is not None for each in self.tasks)

    @property
    def attempts(self) -> int:
        return sum(len(each.attempts) for each in self.tasks)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.tasks)

    @property
    def rows(self) -> int:
        """The rows of what is published."""
        return sum(each.output.rows for each in self.tasks if each.output)

    @property
    def unreadable(self) -> int:
        return sum(each.error is not None for each in self.tasks)

    @cached_property
    def partition_bytes(self) -> list[int]:
        """What is published for each reduce partition; empty if no index tells."""
        sizes: Counter[int] = Counter()
        partitions = 0
        for each in self.tasks:
            if each.index:
                partitions = max(partitions, each.index.partition_count)
                sizes.update({meta.reduce_partition: meta.bytes for meta in each.index.partitions})
        return [sizes[number] for number in range(max([partitions, *(n + 1 for n in sizes)]))]

    @property
    def skew(self) -> Skew | None:
        """None unless there are several partitions."""
        sizes = self.partition_bytes
        if len(sizes) < 2:
            return None
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        return Skew(largest, sizes[largest], median(sizes))


def describe_stages(objects: Objects, query_id: int) -> list[StageDescription]:
    """Return every stage of a query that has anything stored, by number. Changes nothing.

    What cannot be read is told with its map task, and hides nothing else.
    """
    found = group_by_task(list(objects.list(query_directory(query_id))))
    registry, reader = OutputRegistry(objects), MapOutputReader(objects)

    def describe(task: MapTask) -> TaskDescription:
        return _describe(registry, reader, task, found[task])

    with ThreadPoolExecutor(_READS_AT_ONCE, "exchange inspection") as threads:
        tasks = list(threads.map(describe, sorted(found)))
    stages: dict[int, list[TaskDescription]] = {}
    for each in tasks:
        stages.setdefault(each.task.stage_id, []).append(each)
    return [StageDescription(query_id, number, tuple(held)) for number, held in stages.items()]


def _describe(
    registry: OutputRegistry, reader: MapOutputReader, task: MapTask, stored: TaskObjects
) -> TaskDescription:
    output = index = error = None
    try:
        output = registry.latest(task)
        index = reader.index(output) if output else None
    except (DamagedOutputError, VersionError) as found:
        error = found
    size = sum(info.bytes for files in stored.files.values() for info in files)
    return TaskDescription(task, tuple(sorted(stored.files)), size, output, index, error)
