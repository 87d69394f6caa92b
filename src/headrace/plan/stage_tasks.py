"""The tasks of a stage, named by what they read and by the code that reads it. Pure.

    stage       a hash of its operators, the source of their functions, and the stages it reads
    task        a hash of its unit, or of its partition and the checksums of the files that it reads

So a stage that has not changed finds its outputs again in any later run of the query, whatever the
number of cores, the order of units, or what comes after it in the plan. A task that reads other
rows, or runs other code, has another name. If output that was computed again has other rows than
before, every task that reads such rows is another task: no two tasks read different generations.

A partition that is much larger than the others is divided among several tasks if the stage joins:
each reads a range of the map tasks on the larger side, if the kind of join allows that, and all of
the other side. This also divides the rows of one key. (An aggregate needs none of that: a map task
writes one row for each key.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from headrace.exchange.format.layout import MapTask, MapTaskIndex, ShufflePartitionMeta
from headrace.plan.operators import (
    Distinct,
    Filter,
    HashJoin,
    JoinKind,
    Map,
    Operator,
    PartialHashAggregate,
    PlanSink,
    Project,
    ScanUnit,
    ShuffleRead,
    ShuffleWrite,
    SourceScan,
    function_name,
    inputs,
)
from headrace.plan.source_hash import source_hash
from headrace.plan.stages import PlanStage, StageGraph

SPLIT_BYTES_MIN = 64 << 20
"""A partition below this size is never divided."""
SPLIT_FACTOR = 4
"""A partition is divided if it is this many times as large as the median of the others."""


class PartRef(NamedTuple):
    """A part file of an attempt of a map task."""

    task: MapTask
    attempt: int
    meta: ShufflePartitionMeta

    @property
    def identity(self) -> str:
        """Identifies the rows: a file that was computed again, with the same rows, is the same."""
        return f"{self.task.map_task:x}:{self.meta.checksum or self.attempt}"


@dataclass(frozen=True)
class MapRange:
    """What a task reads of a shuffle: one partition of some map tasks, where it has rows."""

    partition: int
    parts: tuple[PartRef, ...]


@dataclass(frozen=True)
class StageTask:
    """One task. It travels to whoever runs it."""

    task: MapTask
    unit: ScanUnit | None = None
    """What a task of a stage that scans reads."""
    reads: tuple[MapRange, ...] = ()
    """What any other task reads, in the order of the stage's shuffle reads."""
    replaces: int = 0
    """The attempt whose output is damaged; 0 if the task has no output yet."""


def number_of(*parts: str) -> int:
    """Return a number of 64 bits that names what the parts describe, in their order."""
    hashed = blake2b(digest_size=8)
    for part in parts:
        data = part.encode()
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return int.from_bytes(hashed.digest(), "little")


def stage_numbers(graph: StageGraph) -> list[int]:
    """Return the name of each stage."""
    numbers: list[int] = []
    for stage in graph.stages:
        described = [_identity(graph, each, numbers) for each in stage.operators]
        numbers.append(number_of("stage", *described))
    return numbers


def _identity(graph: StageGraph, operator: Operator, numbers: Sequence[int]) -> str:
    """Describe everything that the rows of an operator depend on, but for the rows it reads."""
    match operator:
        case SourceScan():
            return "Scan"
        case ShuffleRead():
            return f"{operator} of {numbers[graph.producer(operator).stage_id]}"
        case Map() | Filter():
            schema = operator.schema if isinstance(operator, Map) else None
            code = _code(operator.function, operator.version)
            return f"{type(operator).__name__} {code} {schema}"
        case PlanSink():
            return f"Sink {_code(operator.sink, operator.version)}"
    return str(operator)


def _code(function: Callable[..., Any], version: str) -> str:
    return f"{function_name(function)} {version}" if version else source_hash(function)


def scan_tasks(query_id: int, stage_id: int, units: Sequence[ScanUnit]) -> list[StageTask]:
    """Return a task for each unit. Units of one name are one task."""
    named = {unit.name: unit for unit in units}
    return [
        StageTask(MapTask(query_id, stage_id, number_of("unit", name)), unit)
        for name, unit in sorted(named.items())
    ]


def reduce_tasks(
    query_id: int,
    stage_id: int,
    stage: PlanStage,
    shuffles: Sequence[Sequence[MapTaskIndex]],
) -> list[StageTask]:
    """Return the tasks of a stage that reads shuffles, at least one for each partition.

    `shuffles` has, for each shuffle read, the indexes of its map tasks in the order of their names.
    """
    found: list[StageTask] = []
    divided = [_parts(each, stage.partitions) for each in shuffles]
    sizes = {side: [_bytes(each) for each in divided[side]] for side in _sides_to_divide(stage)}
    ordered = {side: sorted(sizes[side]) for side in sizes}
    for partition in range(stage.partitions):
        whole = tuple(MapRange(partition, each[partition]) for each in divided)
        side = max(sizes, key=lambda each: sizes[each][partition], default=0)
        pieces = (
            _pieces(ordered[side], sizes[side][partition], len(whole[side].parts)) if sizes else 1
        )
        for number in range(pieces):
            reads = whole
            if pieces > 1:
                part = MapRange(partition, whole[side].parts[number::pieces])
                reads = (*whole[:side], part, *whole[side + 1 :])
            found.append(StageTask(MapTask(query_id, stage_id, _name(reads)), None, reads))
    return found


def _parts(indexes: Sequence[MapTaskIndex], partitions: int) -> list[tuple[PartRef, ...]]:
    """Return the part files of each partition, in the order of the indexes."""
    found: list[list[PartRef]] = [[] for _ in range(partitions)]
    for index in indexes:
        for meta in index.partitions:
            found[meta.reduce_partition].append(PartRef(index.task, index.attempt, meta))
    return [tuple(each) for each in found]


def _bytes(parts: Sequence[PartRef]) -> int:
    return sum(part.meta.bytes for part in parts)


def _name(reads: Sequence[MapRange]) -> int:
    return number_of(
        "partition",
        *(
            " ".join([str(each.partition), *(part.identity for part in each.parts)])
            for each in reads
        ),
    )


def _pieces(ordered: Sequence[int], size: int, map_tasks: int) -> int:
    """Return into how many tasks a partition is divided; `ordered` has the sizes of all."""
    if size < SPLIT_BYTES_MIN:
        return 1
    median = _median_of_others(ordered, size)
    if size < SPLIT_FACTOR * median:
        return 1
    return max(1, min(map_tasks, size // max(median, SPLIT_BYTES_MIN // 2)))


def _median_of_others(ordered: Sequence[int], size: int) -> int:
    """Return the median of sorted sizes but for one that is `size`; 0 if there are no others."""
    middle = (len(ordered) - 1) // 2
    if middle >= bisect_left(ordered, size):
        middle += 1
    return ordered[middle] if len(ordered) > 1 else 0


_DIVISIBLE: dict[JoinKind, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left": ("left",),
    "semi": ("left",),
    "anti": ("left",),
    "right": ("right",),
    "full": (),
}
"""Which sides of a join may be divided: those of which every row is treated by itself.

If the right side of a left join were divided, each piece would keep the rows of the left side that
it has no match for. A full join keeps those of both sides.
"""


def _sides_to_divide(stage: PlanStage) -> list[int]:
    """Return which shuffle reads of a join may be divided by map range, one of them at a time."""
    joins = [each for each in stage.operators if isinstance(each, HashJoin)]
    if len(joins) != 1 or not _is_row_wise_above(stage.root, joins[0]):
        return []
    (join,) = joins
    if join.left is join.right:
        return []
    reads = {"left": join.left, "right": join.right}
    return [stage.reads.index(reads[side]) for side in _DIVISIBLE[join.kind]]


def _is_row_wise_above(root: Operator, join: HashJoin) -> bool:
    """True if what comes after the join gives the same for the rows of any pieces together."""
    operator = root
    is_shuffled_next = isinstance(root, ShuffleWrite)
    while operator is not join:
        match operator:
            case Map() | Filter() | Project() | ShuffleWrite() | PlanSink():
                pass
            case PartialHashAggregate() | Distinct() if is_shuffled_next:
                pass
            case _:
                return False
        (operator,) = inputs(operator)
    return True
