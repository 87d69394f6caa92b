"""How stages and tasks are named, and which joins may be divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from headrace.exchange import MapTaskIndex, ShufflePartitionMeta
from headrace.plan import stage_tasks
from headrace.plan.operators import (
    Distinct,
    HashJoin,
    JoinKind,
    Map,
    Operator,
    PartialHashAggregate,
    PlanSink,
    ShuffleRead,
    ShuffleWrite,
    SourceScan,
)
from headrace.plan.query import Query
from headrace.plan.stage_tasks import number_of, reduce_tasks, scan_tasks, stage_numbers
from headrace.plan.stages import cut_stages
from tests.plan.counted_source import CountedSource

SOURCE = CountedSource(Counter())
PARTITIONS = 3


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_number_names_its_parts_and_where_they_begin() -> None:
    parts = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ("bc", "a"), ("", "abc")]
    assert len({number_of(*each) for each in parts}) == len(parts)


def test_the_order_of_units_does_not_matter() -> None:
    units = SOURCE.units()
    assert scan_tasks(1, 2, units) == scan_tasks(1, 2, [*units[::-1], units[0]])
    assert len({each.task for each in scan_tasks(1, 2, units)}) == len(units)


def test_a_stage_is_named_by_its_code_its_columns_and_what_it_reads() -> None:
    scan = Query.scan(SOURCE)
    narrow = pa.schema({"key": pa.int32(), "value": pa.int64()})
    plans = [
        scan,
        scan.map(same),
        scan.map(same, version="2"),
        scan.map(same, schema=SOURCE.schema),
        scan.map(same, schema=narrow),
        scan.filter(same),
        scan.select("key", "value"),
        scan.select("value", "key"),
    ]
    distinct = [each.distinct("key", partitions=PARTITIONS) for each in plans]
    distinct.append(scan.distinct("key", partitions=PARTITIONS + 1))
    numbers = [stage_numbers(each.stages) for each in distinct]
    for stage in (0, 1):
        assert len({each[stage] for each in numbers}) == len(distinct)
    assert stage_numbers(distinct[2].stages) == numbers[2]


def index(map_task: int, attempt: int, checksums: dict[int, str], bytes: int = 1) -> MapTaskIndex:
    return MapTaskIndex(
        query_id=1,
        stage_id=2,
        map_task=map_task,
        attempt=attempt,
        created_at_ms=0,
        partitions=tuple(
            ShufflePartitionMeta(
                reduce_partition=partition,
                file=f"part-{partition}.ipc",
                bytes=bytes,
                rows=1,
                batches=1,
                checksum=checksum,
            )
            for partition, checksum in checksums.items()
        ),
    )


def names(*indexes: MapTaskIndex) -> list[int]:
    """Return the names of the tasks that read these map outputs."""
    stage = Query.scan(SOURCE).distinct("key", partitions=PARTITIONS).stages.stages[1]
    return [each.task.map_task for each in reduce_tasks(1, 3, stage, [indexes])]


def test_a_reduce_task_is_named_by_the_rows_that_it_reads() -> None:
    first = names(index(7, 1, {0: "a", 1: "b"}))
    assert len(set(first)) == PARTITIONS
    assert len(set(names())) == PARTITIONS, "empty partitions are different tasks"
    assert names(index(7, 2, {0: "a", 1: "b"})) == first, "the same rows, computed again"
    changed = names(index(7, 2, {0: "a", 1: "c"}))
    assert [a == b for a, b in zip(changed, first, strict=True)] == [True, False, True]
    other = names(index(8, 1, {0: "a", 1: "b"}))
    assert [a == b for a, b in zip(other, first, strict=True)] == [False, False, True]
    # Without a checksum nobody knows whether rows that were computed again are the same.
    assert names(index(7, 1, {0: ""}))[0] != names(index(7, 2, {0: ""}))[0]


def shuffled(rows: Operator) -> ShuffleRead:
    return ShuffleRead(ShuffleWrite(rows, ("key",), PARTITIONS))


def after_join(build: Callable[[HashJoin], Operator]) -> Operator:
    left, right = (shuffled(SourceScan(SOURCE)) for _ in range(2))
    return build(HashJoin(left, right, ("key",), "semi"))


@pytest.mark.parametrize(
    ("root", "is_divided"),
    [
        (after_join(lambda join: join), True),
        (after_join(lambda join: PlanSink(Map(join, same), print)), True),
        (after_join(lambda join: shuffled(Distinct(join, ("key",)))), True),
        (after_join(lambda join: shuffled(PartialHashAggregate(join, ("key",), ()))), True),
        # Each piece would keep a row of the same key.
        (after_join(lambda join: Distinct(join, ("key",))), False),
        (after_join(lambda join: PlanSink(Distinct(join, ("key",)), print)), False),
        (after_join(lambda join: PlanSink(PartialHashAggregate(join, ("key",), ()), print)), False),
    ],
)
def test_a_join_is_divided_only_if_its_pieces_may_be_treated_by_themselves(
    root: Operator, is_divided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_tasks, "SPLIT_BYTES_MIN", 2)
    stage = next(
        each
        for each in cut_stages(root).stages
        if any(isinstance(operator, HashJoin) for operator in each.operators)
    )
    large = [index(map_task, 1, {0: f"{map_task}"}, 100) for map_task in range(4)]
    tasks = reduce_tasks(1, 3, stage, [large, [index(9, 1, {0: "few"})]])
    assert len(tasks) == (PARTITIONS + 3 if is_divided else PARTITIONS)
    read = [part.task.map_task for task in tasks for part in task.reads[0].parts]
    assert sorted(read) == [0, 1, 2, 3], "each part is read once"


@pytest.mark.parametrize("large", [0, 1])
@pytest.mark.parametrize(
    ("kind", "divisible"),
    [
        *(("inner", (0, 1)), ("left", (0,)), ("semi", (0,)), ("anti", (0,))),
        *(("right", (1,)), ("full", ())),
    ],
)
def test_a_hot_partition_is_divided_on_the_side_that_is_large(
    kind: JoinKind, divisible: tuple[int, ...], large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless each piece would keep rows of the other side that have no match in it."""
    monkeypatch.setattr(stage_tasks, "SPLIT_BYTES_MIN", 10)
    left, right = (shuffled(SourceScan(SOURCE)) for _ in range(2))
    stage = cut_stages(HashJoin(left, right, ("key",), kind)).stages[-1]
    hot = [index(map_task, 1, {1: f"{map_task}"}, 100) for map_task in range(4)]
    few = [index(map_task, 1, {1: "few"}) for map_task in (8, 9)]
    tasks = reduce_tasks(1, 3, stage, [few, hot] if large else [hot, few])
    assert len(tasks) == (PARTITIONS + 3 if large in divisible else PARTITIONS)
    read = [part.task.map_task for task in tasks for part in task.reads[large].parts]
    assert sorted(read) == [0, 1, 2, 3], "each part of the large side is read once"
    for task in tasks:
        if task.reads[large].parts:
            assert len(task.reads[1 - large].parts) == 2, "with all of the other side"
