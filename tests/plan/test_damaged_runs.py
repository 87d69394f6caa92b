"""Runs whose shuffle files are damaged or lost: what is computed again, and what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.exchange import PinnedStage, PublishedOutput, verify
from headrace.exchange.cleanup.removal_marks import RemovalMarks
from headrace.plan.plan_run import PlanRun, ThreadTaskRunner
from headrace.plan.query import Query
from headrace.storage import Objects
from tests.plan.counted_source import (
    CountedSource,
    CountedUnit,
    expected,
    finished,
    results,
    totals,
)

T = TypeVar("T")
R = TypeVar("R")

Harm = Callable[[Objects, str], None]


def flip(objects: Objects, key: str) -> None:
    data = bytearray(objects.get(key))
    data[len(data) // 2] ^= 4
    objects.put(key, data)


def cut_off(objects: Objects, key: str) -> None:
    objects.put(key, objects.get(key)[:-1])


def lose(objects: Objects, key: str) -> None:
    objects.delete(key)


HARMS = pytest.mark.parametrize("harm", [flip, cut_off, lose])
MEMORY_FIRST = pytest.mark.parametrize(
    "objects",
    ["memory", *(pytest.param(each, marks=pytest.mark.deep) for each in ("local", "s3"))],
    indirect=True,
)


def first_output(run: PlanRun, stage: int) -> PublishedOutput:
    """Return the first output of a stage that has rows."""
    index = next(each for each in run._indexes[stage] if each.rows)
    return run._registry.lookup(index.task)


def file_of(run: PlanRun, stage: int, kind: str) -> str:
    output = first_output(run, stage)
    task = output.task
    if kind == "publication":
        return task.publication(output.generation)
    if kind == "claim":
        return task.claim(output.attempt)
    if kind == "part":
        index = next(each for each in run._indexes[stage] if each.task == task)
        return task.file(output.attempt, index.partitions[0].file)
    return task.file(output.attempt, kind)


def longer(query: Query) -> Query:
    """Return another query that reads what the map tasks of this one wrote."""
    return query.filter(lambda batch: pc.less(batch["key"], 99))


RECOMPUTED = {
    (0, "part"): (1, 0),
    (0, "index.bin"): (1, 0),
    (0, "publication"): (1, 0),
    (0, "index.json"): (0, 0),
    (0, "claim"): (0, 0),
    (1, "part"): (0, 1),
    (1, "index.bin"): (0, 1),
    (1, "publication"): (0, 1),
    (1, "index.json"): (0, 0),
    (1, "claim"): (0, 0),
}
"""How many tasks of the map stage and of the last one are computed again. Nobody needs an index as
JSON beside the binary one, nor the claim of an attempt that is published."""


@MEMORY_FIRST
@HARMS
@pytest.mark.parametrize(("stage", "kind"), RECOMPUTED)
def test_what_is_damaged_is_computed_again_and_nothing_else(
    objects: Objects, stage: int, kind: str, harm: Harm
) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    query = totals(CountedSource(reads))
    run = finished("totals", query, objects)
    harm(objects, file_of(run, stage, kind))
    if stage == 0:  # the last stage is another one, so that it reads the map outputs
        query = longer(query)
    again = finished("totals", query, objects)
    assert results(again) == expected()
    maps, lasts = RECOMPUTED[stage, kind]
    if kind == "index.bin" and harm is lose:
        maps = lasts = 0  # the index is there as JSON
    assert sum(reads.values()) == 8 + maps
    table_reads = again.reports[1]
    assert table_reads.computed == (table_reads.tasks if stage == 0 else lasts)
    if kind == "claim":
        assert verify(objects, run.query_id).damages == []


def test_an_index_that_is_left_alone_is_checked_too(objects: Objects) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    query = totals(CountedSource(reads))
    run = finished("totals", query, objects)
    lose(objects, file_of(run, 0, "index.bin"))
    flip(objects, file_of(run, 0, "index.json"))
    again = finished("totals", query, objects)
    assert results(again) == expected()
    assert sorted(reads.values()) == [1] * 7 + [2]


@MEMORY_FIRST
@HARMS
def test_damage_of_a_result_is_noticed_when_it_is_read(objects: Objects, harm: Harm) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    run = finished("totals", totals(CountedSource(reads)), objects)
    harm(objects, file_of(run, 1, "part"))
    assert results(run) == expected()
    assert [run.reports[0].repaired, run.reports[1].repaired] == [0, 1]
    result = first_output(run, 1)
    plan = run._plan(run.graph.stages[1], result.stage_id)
    (task,) = [each for each in plan if each.task == result.task]
    read = task.reads[0].parts[0]
    harm(objects, file_of(run, 1, "part"))
    harm(objects, read.task.file(read.attempt, read.meta.file))
    assert results(run) == expected()
    assert run.reports[1].repaired == 2
    assert sorted(reads.values()) == [1] * 7 + [2], "one map task was computed again for it"


@dataclass
class HarmfulRunner:
    """Runs a few tasks of a stage, does harm, and runs the others."""

    stage: int
    harm: Callable[[], None]
    before: int = 1
    done: list[int] = field(default_factory=list)

    def run(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        threads = ThreadTaskRunner(2)
        if f"stage {self.stage} of" not in what or self.done:
            return threads.run(what, work, tasks)
        first = threads.run(what, work, tasks[: self.before])
        self.harm()
        self.done.append(len(tasks))
        return first + threads.run(what, work, tasks[self.before :])


@MEMORY_FIRST
@HARMS
@pytest.mark.parametrize("kind", ["part", "index.bin", "publication"])
def test_damage_in_the_middle_of_a_stage_is_mended(objects: Objects, kind: str, harm: Harm) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    query = totals(CountedSource(reads))

    def do_harm() -> None:
        for stage_index in run._indexes[0]:
            task, attempt = stage_index.task, stage_index.attempt
            if kind == "publication":
                harm(objects, task.publication(1))
            elif kind == "index.bin":
                harm(objects, task.file(attempt, kind))
            else:
                for part in stage_index.partitions:
                    harm(objects, task.file(attempt, part.file))

    run = PlanRun("totals", query.stages, objects, HarmfulRunner(1, do_harm))
    run.run()
    assert results(run) == expected()
    # Who has read the index and the record before does not need them any more.
    assert set(reads.values()) == ({2} if kind == "part" else {1})
    again = finished("totals", longer(query), objects)
    assert results(again) == expected()


@dataclass(frozen=True)
class FickleUnit(CountedUnit):
    """Rows that are others each time they are read."""

    def read(self) -> pa.Table:
        table = super().read()
        more = pa.scalar(1_000 * (self.reads[self.name] - 1), pa.int64())
        return table.set_column(1, "value", pc.add(table["value"], more))


@dataclass(frozen=True)
class FickleSource(CountedSource):
    def units(self) -> Sequence[CountedUnit]:
        return [
            FickleUnit(each.name, each.first, each.rows, each.reads) for each in super().units()
        ]


def test_no_two_tasks_read_different_generations_of_rows_that_changed(objects: Objects) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    query = totals(FickleSource(reads))

    def do_harm() -> None:
        for part in run._indexes[0][0].partitions:
            index = run._indexes[0][0]
            flip(objects, index.task.file(index.attempt, part.file))

    # Two reduce tasks are done with the rows of the first generation.
    run = PlanRun("totals", query.stages, objects, HarmfulRunner(1, do_harm, before=2))
    run.run()
    (twice,) = [name for name, count in reads.items() if count == 2]
    first = int(twice.removeprefix("rows "))
    changed = expected()
    for value in range(first, first + 5):
        changed[value % 7] += 1_000
    assert results(run) == changed


def test_a_join_computes_again_what_is_damaged_of_either_side(objects: Objects) -> None:
    # proves G20
    reads: Counter[str] = Counter()
    left = totals(CountedSource(reads))
    right = Query.scan(CountedSource(reads, 1)).select("key").distinct("key", partitions=3)
    query = left.join(right, "key", how="semi", partitions=3)

    def do_harm() -> None:
        for stage in (1, 3):
            flip(objects, file_of(run, stage, "part"))

    run = PlanRun("joined", query.stages, objects, HarmfulRunner(4, do_harm, before=0))
    run.run()
    assert results(run) == {key: expected()[key] for key in range(5)}
    assert [run.reports[stage].repaired for stage in range(5)] == [0, 1, 0, 1, 0]


def test_a_damaged_pin_or_mark_does_no_harm(objects: Objects) -> None:
    # proves G22
    reads: Counter[str] = Counter()
    query = totals(CountedSource(reads))
    run = finished("totals", query, objects)
    output = first_output(run, 0)
    RemovalMarks(objects).mark(output.task, output.attempt)
    with PinnedStage(objects, run.query_id, output.stage_id):
        for info in objects.list(f"shuffle/{run.query_id}"):
            if "/pins/" in info.key or "/removed/" in info.key:
                objects.put(info.key, b"damaged")
        assert results(finished("totals", longer(query), objects)) == expected()
    assert set(reads.values()) == {1}
