"""Runs of a plan on shuffle files: what is reused, repaired and divided."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import DataError, SchemaError
from headrace.exchange import OutputRegistry
from headrace.exchange.cleanup.pinned_stage import list_pins, now_ms
from headrace.plan import stage_tasks
from headrace.plan.plan_run import PlanRun, StageWork, TaskResult, ThreadTaskRunner
from headrace.plan.query import Query
from headrace.plan.stage_tasks import scan_tasks, stage_numbers
from headrace.storage import Objects, open_objects
from tests.plan.counted_source import (
    KEYS,
    CountedSource,
    CountedUnit,
    expected,
    finished,
    results,
    rows_of,
    totals,
)

PATIENCE_S = 60.0


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "objects"))


def test_a_second_run_computes_nothing(objects: Objects) -> None:  # proves G21
    reads: Counter[str] = Counter()
    first = finished("totals", totals(CountedSource(reads)), objects)
    assert results(first) == expected()
    assert [each.computed for each in first.reports.values()] == [8, 3]
    # The units come in another order, as from another number of cores.
    again = finished("totals", totals(CountedSource(reads, is_reversed=True)), objects)
    assert results(again) == expected()
    assert [(each.computed, each.reused) for each in again.reports.values()] == [(0, 8), (0, 3)]
    assert set(reads.values()) == {1}


def test_units_that_are_added_are_read_alone(objects: Objects) -> None:  # proves G21
    reads: Counter[str] = Counter()
    finished("totals", totals(CountedSource(reads, 6)), objects)
    grown = finished("totals", totals(CountedSource(reads, 8)), objects)
    assert results(grown) == expected()
    assert set(reads.values()) == {1}
    assert [(each.computed, each.reused) for each in grown.reports.values()] == [(2, 6), (3, 0)]


def test_another_function_is_another_stage(objects: Objects) -> None:  # proves G21
    reads: Counter[str] = Counter()
    source = CountedSource(reads)

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "value", pc.multiply(batch["value"], 2))

    finished("totals", totals(source), objects)
    query = Query.scan(source).map(doubled, schema=source.schema).group_by("key", partitions=3)
    other = finished("totals", query.agg(total=("value", "sum")), objects)
    assert results(other) == {key: 2 * total for key, total in expected().items()}
    assert set(reads.values()) == {2}


def test_what_comes_later_in_a_plan_may_change(objects: Objects) -> None:  # proves G21
    reads: Counter[str] = Counter()
    finished("totals", totals(CountedSource(reads)), objects)
    changed = totals(CountedSource(reads)).filter(lambda batch: pc.less(batch["key"], 2))
    run = finished("totals", changed, objects)
    assert results(run) == {key: total for key, total in expected().items() if key < 2}
    assert set(reads.values()) == {1}


@pytest.mark.parametrize("loses_file", [True, False])
def test_damaged_output_is_computed_again(objects: Objects, loses_file: bool) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    query = totals(CountedSource(reads))
    run = finished("totals", query, objects)
    # The reduce side is computed again by another plan; it reads what the map side wrote.
    parts = [
        each.key
        for output in run._indexes[0]
        for each in objects.list(output.task.attempt_directory(output.attempt))
        if each.key.endswith(".ipc")
    ]
    damaged = parts[0]
    data = bytearray(objects.get(damaged))
    data[len(data) // 2] ^= 1
    if loses_file:
        objects.delete(damaged)
    else:
        objects.put(damaged, data)
    other = finished("totals", query.filter(lambda batch: pc.less(batch["key"], 99)), objects)
    assert results(other) == expected()
    assert sorted(reads.values()) == [1] * 7 + [2]
    assert other.reports[0].repaired == 1


def test_output_that_is_damaged_again_and_again_is_an_error(objects: Objects) -> None:
    reads: Counter[str] = Counter()

    class ForgetfulObjects:
        """Loses the parts of map outputs as soon as they are written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(objects, name)

        def put_all(self, given: Sequence[tuple[str, Any]]) -> None:
            objects.put_all([each for each in given if not each[0].endswith(".ipc")])

    run = PlanRun("totals", totals(CountedSource(reads)).stages, ForgetfulObjects())
    with pytest.raises(
        DataError, match=r"query 'totals': output of stage 0 is damaged again and again"
    ):
        run.run()


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "side"),
    [
        *(("inner", "left"), ("inner", "right"), ("left", "left"), ("right", "right")),
        *(("full", "left"), ("semi", "left"), ("anti", "left")),
    ],
)
def test_a_hot_key_is_divided_by_map_range(
    objects: Objects, how: Any, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KEYS if how == "anti" else 1

    def hot(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(0, "key", pa.array([key] * batch.num_rows, pa.int64()))

    reads: Counter[str] = Counter()
    source = CountedSource(reads)
    many = Query.scan(source).map(hot, schema=source.schema)
    few = Query.scan(CountedSource(reads, 1)).map(
        lambda batch: pa.record_batch({"key": batch["key"], "other": batch["value"]}),
        schema=pa.schema({"key": pa.int64(), "other": pa.int64()}),
    )
    left, right = (few, many) if side == "right" else (many, few)
    joined = left.join(right, "key", how=how, partitions=4)
    whole = finished("whole", joined, objects)
    assert whole.reports[2].tasks == 4
    monkeypatch.setattr(stage_tasks, "SPLIT_BYTES_MIN", 2)
    divided = finished("divided", joined, objects)
    assert divided.reports[2].tasks == (4 if how == "full" else 11)
    found = Counter(map(str, rows_of(divided)))
    assert found == Counter(map(str, rows_of(whole)))
    assert found


def test_a_query_without_units_has_no_rows(objects: Objects) -> None:
    source = CountedSource(Counter(), 0)
    assert rows_of(finished("totals", totals(source), objects)) == []
    unknown = Query.scan(source).map(lambda batch: batch)
    grouped = unknown.group_by("key", partitions=3).agg(n="count")
    assert rows_of(finished("unknown", grouped, objects)) == []
    joined = totals(CountedSource(Counter())).join(unknown, "key", how="left")
    with pytest.raises(SchemaError, match=r"no task wrote rows, so its columns are not known"):
        finished("joined", joined, objects)


@dataclass(frozen=True)
class GatedUnit(CountedUnit):
    """Rows whose first reader waits, as an attempt does that Spark takes for dead."""

    is_read: threading.Event
    may_go_on: threading.Event

    def read(self) -> pa.Table:
        table = super().read()
        if not self.is_read.is_set():
            self.is_read.set()
            assert self.may_go_on.wait(PATIENCE_S)
        return table


def test_an_attempt_that_ends_late_publishes_nothing_and_learns_who_won(objects: Objects) -> None:
    # proves G19
    reads: Counter[str] = Counter()
    unit = GatedUnit("rows 0", 0, 5, reads, threading.Event(), threading.Event())
    stage = totals(CountedSource(reads)).stages.stages[0]
    (task,) = scan_tasks(1, 2, [unit])
    work = StageWork(stage, objects)
    with ThreadPoolExecutor() as threads:
        late = threads.submit(work, task)
        assert unit.is_read.wait(PATIENCE_S)
        winner = work(task)
        unit.may_go_on.set()
        assert late.result(PATIENCE_S) == winner
    assert reads["rows 0"] == 2, "both have computed it"
    assert work(task) == winner
    assert reads["rows 0"] == 2, "who comes later computes nothing"
    assert OutputRegistry(objects).published(1, 2) == {task.task.map_task: winner}
    directories = {info.key.split("/")[4] for info in objects.list(task.task.directory)}
    assert directories == {str(winner.attempt)}


def test_attempts_at_once_publish_one_output_for_each_task(objects: Objects) -> None:
    # proves G19
    source = CountedSource(Counter())
    stage = totals(source).stages.stages[0]
    tasks = scan_tasks(1, 2, source.units())
    together = threading.Barrier(3)

    def work_all(_: int) -> list[TaskResult]:
        found = []
        for task in tasks:
            together.wait(PATIENCE_S)
            found.append(StageWork(stage, objects)(task))
        return found

    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(work_all, range(3))
    assert others == [first, first]
    for task in tasks:
        assert len({info.key.split("/")[4] for info in objects.list(task.task.directory)}) == 1


def test_a_run_pins_what_it_reads(objects: Objects) -> None:
    # proves G22
    source, held = CountedSource(Counter()), []

    class WatchfulRunner(ThreadTaskRunner):
        def run(self, what: str, work: Any, tasks: Any) -> list[Any]:
            held.append({pin.stage_id for pin in list_pins(objects, run.query_id, now_ms())})
            return super().run(what, work, tasks)

    run = PlanRun("totals", totals(source).stages, objects, WatchfulRunner())
    run.run()
    assert held == [set(stage_numbers(run.graph))] * 2
    assert list_pins(objects, run.query_id, now_ms()) == []
