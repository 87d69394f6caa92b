"""How a plan is cut into stages, and which plans are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SchemaError, UsageError
from headrace.plan import stage_tasks
from headrace.plan.aggregates import Aggregate
from headrace.plan.diagram import draw
from headrace.plan.operators import (
    FinalHashAggregate,
    HashJoin,
    Map,
    Operator,
    PartialHashAggregate,
    PlanSink,
    ShuffleRead,
    ShuffleWrite,
    SourceScan,
)
from headrace.plan.query import Query
from headrace.plan.stages import cut_stages
from tests.plan.sample_sources import TableScan

ORDERS = TableScan(pa.table({"lang": ["en"], "cents": [1]}), label="orders")
PEOPLE = TableScan(pa.table({"lang": ["en"], "name": ["ann"]}), label="people")
COUNT = (Aggregate("n", "count", ""),)


def kinds(operators: tuple[Operator, ...]) -> list[str]:
    return [type(each).__name__ for each in operators]


def test_cuts_stage_at_shuffle_read() -> None:
    partial = PartialHashAggregate(SourceScan(ORDERS), ("lang",), COUNT)
    read = ShuffleRead(ShuffleWrite(partial, ("lang",), 4))
    graph = cut_stages(PlanSink(FinalHashAggregate(read, ("lang",), COUNT), print))
    upstream, root = graph.stages
    assert kinds(upstream.operators) == ["SourceScan", "PartialHashAggregate", "ShuffleWrite"]
    assert kinds(root.operators) == ["ShuffleRead", "FinalHashAggregate", "PlanSink"]
    assert graph.edges == ((upstream.stage_id, root.stage_id),) == ((0, 1),)
    assert (upstream.partitions, root.partitions) == (0, 4)
    assert graph.producer(read) is upstream


def test_every_shuffle_is_a_cut_and_parents_come_first() -> None:
    languages = Query.scan(PEOPLE).distinct("lang")
    query = Query.scan(ORDERS).group_by("lang").agg(n="count").join(languages, "lang")
    graph = query.stages
    assert graph.edges == ((0, 1), (2, 3), (1, 4), (3, 4))
    assert all(parent < stage.stage_id for stage in graph.stages for parent in stage.parents)
    assert [kinds((stage.root,))[0] for stage in graph.stages] == [
        *["ShuffleWrite"] * 4,
        "HashJoin",
    ]


def test_the_same_plan_has_the_same_stages() -> None:
    def described() -> str:
        query = Query.scan(ORDERS).group_by("lang").agg(n="count")
        return draw(query.join(Query.scan(PEOPLE), "lang", how="left").stages)

    assert described() == described()


def test_a_part_that_is_used_twice_is_one_stage() -> None:
    counts = Query.scan(ORDERS).group_by("lang").agg(n="count")
    write = ShuffleWrite(counts.root, ("lang",), 4)
    join = HashJoin(ShuffleRead(write), ShuffleRead(write), ("lang",), "semi")
    graph = cut_stages(join)
    assert len(graph.stages) == 3
    assert graph.stages[-1].parents == (1,)


READ = ShuffleRead(ShuffleWrite(SourceScan(ORDERS), ("lang",), 4))


@pytest.mark.parametrize(
    ("root", "error"),
    [
        (READ.input, r"ShuffleWrite\(lang; 4 partitions\) is read by no operator; add a"),
        (
            Map(PlanSink(SourceScan(ORDERS), print), len),
            r"Sink\(print\) is read by another operator",
        ),
        (Map(READ.input, len), r"Map\(len\) reads ShuffleWrite\(.*\) directly; put a ShuffleRead"),
        (FinalHashAggregate(READ, ("lang",), COUNT), r"does not read the shuffle of a Partial"),
        (
            FinalHashAggregate(
                ShuffleRead(
                    ShuffleWrite(
                        PartialHashAggregate(SourceScan(ORDERS), ("lang",), COUNT), ("n.n",), 4
                    )
                ),
                ("lang",),
                COUNT,
            ),
            r"may divide the rows of one key; shuffle by the keys",
        ),
        (
            FinalHashAggregate(
                ShuffleRead(
                    ShuffleWrite(PartialHashAggregate(SourceScan(ORDERS), (), COUNT), ("lang",), 4)
                ),
                ("lang",),
                COUNT,
            ),
            r"differs from PartialHashAggregate\(all rows: n=count\)",
        ),
        (
            HashJoin(READ, ShuffleRead(ShuffleWrite(SourceScan(PEOPLE), ("lang",), 8)), ("lang",)),
            r"reads 4 partitions on its left and 8 on its right; give both",
        ),
        (
            HashJoin(READ, ShuffleRead(ShuffleWrite(SourceScan(PEOPLE), ("name",), 4)), ("lang",)),
            r"reads ShuffleWrite\(name; 4 partitions\); shuffle it by the join's columns",
        ),
        (HashJoin(READ, READ, ("lang",), "cross"), r"is no kind of join"),  # type: ignore[arg-type]
    ],
)
def test_a_plan_that_cannot_run_is_refused_by_name(root: Operator, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        cut_stages(root)


@pytest.mark.parametrize("partitions", [0, -1, 4097])
def test_an_impossible_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(UsageError, match=rf"partitions must be from 1 to 4096, got {partitions}"):
        Query.scan(ORDERS).group_by("lang", partitions=partitions).agg(n="count")


def test_errors_of_columns_name_operator_and_column() -> None:
    orders = Query.scan(ORDERS)
    cases: list[tuple[Callable[[], Query], str]] = [
        (lambda: orders.select("cent"), r"Project\(cent\): there is no column 'cent'; use one of"),
        (lambda: orders.group_by("land").agg(n="count"), r"there is no column 'land'; use one of"),
        (
            lambda: orders.group_by("lang").agg(t=("lang", "sum")),
            r"t=sum\(lang\): column 'lang' has type string, which has no sum",
        ),
        (lambda: orders.distinct("land"), r"Distinct\(land\): there is no column 'land'"),
        (
            lambda: orders.join(Query.scan(PEOPLE), "name"),
            r"ShuffleWrite\(name; 16 partitions\): there is no column 'name'",
        ),
        (lambda: orders.join(orders, "lang"), r"both inputs have a column 'cents'; rename it"),
        (
            lambda: orders.join(Query.scan(TableScan(pa.table({"lang": [1]}))), "lang", how="semi"),
            r"column 'lang' is string on the left and int64 on the right; give both",
        ),
    ]
    for build, error in cases:
        with pytest.raises(SchemaError, match=error):
            build()


def test_aggregates_that_do_not_exist_are_refused() -> None:
    grouped = Query.scan(ORDERS).group_by("lang")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "agg\\(\\) names no aggregate"),
        ({"n": "median"}, "there is no aggregate 'median'; use count, sum"),
        ({"n": ("cents", "count_distinct")}, "count after distinct"),
        ({"n": "sum"}, "'sum' needs a column"),
        ({"n": 3}, "3 is no aggregate"),
        ({"lang": "count"}, "names 'lang', which is a key"),
    ]
    for wanted, error in cases:
        with pytest.raises(UsageError, match=error):
            grouped.agg(**wanted)


def test_a_diagram_names_stages_and_what_they_read() -> None:
    graph = Query.scan(ORDERS).group_by("lang", partitions=4).agg(n="count").stages
    assert draw(graph) == (
        "stage 0: a task for each unit\n"
        "  ShuffleWrite(lang; 4 partitions)\n"
        "    PartialHashAggregate(lang: n=count)\n"
        "      Scan(orders)\n"
        "\n"
        "stage 1, after stage 0: 4 tasks\n"
        "  FinalHashAggregate(lang: n=count)\n"
        "    ShuffleRead(4 partitions) of stage 0"
    )
    assert draw(graph, "mermaid").endswith("  s0 --> s1")
    assert "  s0 -> s1;" in draw(graph, "dot")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_a_partition_is_compared_with_the_median_of_the_others(
    sizes: list[int], data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(sizes) - 1))
    others = sorted(sizes[:number] + sizes[number + 1 :])
    median = others[len(others) // 2] if others else 0
    assert stage_tasks._median_of_others(sorted(sizes), sizes[number]) == median
