"""Operators on random tables, against plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SchemaError, UnitError, UsageError
from headrace.plan.kernels import apply, evaluate, schema_of
from headrace.plan.key_columns import split_rows
from headrace.plan.operators import PARTITIONS_MAX, JoinKind, Operator, ShuffleRead, inputs
from headrace.plan.query import Query
from headrace.plan.stages import StageGraph
from tests.plan.sample_sources import TableScan

Rows = list[dict[str, Any]]

FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, math.inf, None])
KEYS = st.one_of(
    st.tuples(st.just(pa.float64()), st.lists(FLOATS, max_size=20)),
    st.tuples(st.just(pa.float32()), st.lists(FLOATS, max_size=20)),
    st.tuples(st.just(pa.string()), st.lists(st.sampled_from(["", "a", "é", None]), max_size=20)),
    st.tuples(st.just(pa.large_string()), st.lists(st.sampled_from(["a", None]), max_size=20)),
    st.tuples(st.just(pa.uint64()), st.lists(st.sampled_from([0, 2**64 - 1, None]), max_size=20)),
    st.tuples(st.just(pa.int8()), st.lists(st.sampled_from([-1, 5, None]), max_size=20)),
    st.tuples(st.just(pa.bool_()), st.lists(st.sampled_from([True, False, None]), max_size=20)),
    st.tuples(st.just(pa.binary(2)), st.lists(st.sampled_from([b"ab", b"\0\0"]), max_size=20)),
    st.tuples(st.just(pa.null()), st.lists(st.none(), max_size=20)),
)
VALUES = st.one_of(st.none(), st.integers(-(2**31), 2**31))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kind, keys = draw(KEYS)
    values = [draw(VALUES) for _ in keys]
    return pa.table(
        {
            "key": pa.array(keys, kind),
            "value": pa.array(values, pa.int64()),
            "row": pa.array(range(len(keys)), pa.int64()),
            "list": pa.array([[each] for each in values], pa.list_(pa.int64())),
        }
    )


def run(query: Query) -> pa.Table:
    """Run a query in this process: each stage, task by task, without files."""
    graph = query.stages
    written: dict[int, list[pa.Table]] = {}
    for stage in graph.stages:
        results = [evaluate(stage.root, given) for given in tasks(graph, stage.stage_id, written)]
        written[stage.stage_id] = results
    results = written[graph.stages[-1].stage_id]
    return pa.concat_tables(results) if results else pa.table({})


def tasks(
    graph: StageGraph, number: int, written: dict[int, list[pa.Table]]
) -> list[dict[Operator, pa.Table]]:
    stage = graph.stages[number]
    if stage.scans:
        return [{stage.scans[0]: unit.read()} for unit in stage.scans[0].source.units()]
    return [
        {read: partition(graph, read, number, written) for read in stage.reads}
        for number in range(stage.partitions)
    ]


def partition(
    graph: StageGraph, read: ShuffleRead, number: int, written: dict[int, list[pa.Table]]
) -> pa.Table:
    write = read.input
    found = [
        pa.table(part.rows)
        for table in written[graph.producer(read).stage_id]
        for part in split_rows(table, write.keys, write.partitions)
        if part.partition == number
    ]
    schema = schema_of(write)
    assert schema is not None
    return pa.concat_tables([schema.empty_table(), *found])


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def multiset(rows: Rows) -> Counter[Any]:
    return Counter(
        tuple((name, repr(canonical(value))) for name, value in sorted(row.items())) for row in rows
    )


@given(tables(), st.integers(1, 5))
def test_an_aggregate_is_that_of_all_rows_of_its_key(table: pa.Table, partitions: int) -> None:
    query = Query.scan(TableScan(table)).group_by("key", partitions=partitions)
    result = run(
        query.agg(
            n="count",
            values=("value", "count"),
            total=("value", "sum"),
            least=("value", "min"),
            most=("value", "max"),
            mean=("value", "mean"),
            spread=("value", "variance"),
        )
    )
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in table.to_pylist():
        groups[canonical(row["key"])].append(row["value"])
    found = {canonical(row["key"]): row for row in result.to_pylist()}
    assert len(found) == result.num_rows, "a key is there twice"
    assert found.keys() == groups.keys()
    for key, held in groups.items():
        values = [each for each in held if each is not None]
        row = found[key]
        assert (row["n"], row["values"]) == (len(held), len(values))
        assert row["total"] == (sum(values) if values else None)
        assert row["least"] == min(values, default=None)
        assert row["most"] == max(values, default=None)
        mean = sum(values) / len(values) if values else None
        assert row["mean"] == (None if mean is None else pytest.approx(mean, rel=1e-12))
        if mean is None or len(values) < 2:
            assert row["spread"] is None
        else:
            spread = sum((each - mean) ** 2 for each in values) / (len(values) - 1)
            assert row["spread"] == pytest.approx(spread, rel=1e-9, abs=1e-6)


@given(tables(), st.integers(1, 5))
def test_distinct_keeps_one_row_for_each_key(table: pa.Table, partitions: int) -> None:
    rows = run(Query.scan(TableScan(table)).distinct("key", partitions=partitions)).to_pylist()
    first: dict[Any, Any] = {}
    for row in table.to_pylist():
        first.setdefault(canonical(row["key"]), row)
    assert multiset(rows) == multiset(list(first.values()))


@given(tables(), st.integers(1, 5), st.data())
def test_a_join_has_every_pair_of_equal_keys(
    table: pa.Table, partitions: int, data: st.DataObject
) -> None:
    kind = table.schema.field("key").type
    others = data.draw(st.lists(st.sampled_from([*table["key"].to_pylist(), None]), max_size=10))
    right = pa.table({"key": pa.array(others, kind), "other": pa.array(range(len(others)))})
    left_rows, right_rows = table.to_pylist(), right.to_pylist()
    matches = [
        (here, there)
        for here in left_rows
        for there in right_rows
        if here["key"] is not None and canonical(here["key"]) == canonical(there["key"])
    ]
    lonely_left = [each for each in left_rows if not any(each is here for here, _ in matches)]
    lonely_right = [each for each in right_rows if not any(each is there for _, there in matches)]
    pairs = [here | there for here, there in matches]
    no_right, no_left = {"other": None}, {"value": None, "row": None, "list": None}
    lefts = [each | no_right for each in lonely_left]
    rights = [no_left | each for each in lonely_right]
    with_match = [each for each in left_rows if any(each is here for here, _ in matches)]
    expected: dict[JoinKind, Rows] = {
        "inner": pairs,
        "left": pairs + lefts,
        "right": pairs + rights,
        "full": pairs + lefts + rights,
        "semi": with_match,
        "anti": lonely_left,
    }
    for how, rows in expected.items():
        query = Query.scan(TableScan(table)).join(
            Query.scan(TableScan(right)),
            "key",
            how=how,
            partitions=partitions,
        )
        assert multiset(run(query).to_pylist()) == multiset(rows), how


def test_all_rows_are_one_group_without_keys() -> None:
    table = pa.table({"value": [1, 2, 3, 4]})
    query = Query.scan(TableScan(table)).group_by().agg(n="count", total=("value", "sum"))
    assert run(query).to_pylist() == [{"n": 4, "total": 10}]


def test_a_sum_that_does_not_fit_is_an_error() -> None:
    table = pa.table({"key": [1, 1, 2], "value": [2**62, 2**62, 5]})
    for rows_per_unit in (1, 3):
        source = TableScan(table, rows_per_unit)
        with pytest.raises(UsageError, match=r"total=sum\(value\): a sum does not fit into 64"):
            run(Query.scan(source).group_by("key").agg(total=("value", "sum")))
    fits = pa.table({"key": [1, 2], "value": [2**62, 2**62]})
    query = Query.scan(TableScan(fits)).group_by("key").agg(total=("value", "sum"))
    assert sorted(row["total"] for row in run(query).to_pylist()) == [2**62, 2**62]


def test_functions_get_record_batches_and_return_rows() -> None:
    table = pa.table({"value": [1, 2, 3, 4]})

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert isinstance(batch, pa.RecordBatch)
        return pa.record_batch({"double": pc.multiply(batch["value"], 2)})

    query = Query.scan(TableScan(table)).map(doubled).filter(lambda b: pc.greater(b["double"], 2))
    assert run(query)["double"].to_pylist() == [4, 6, 8]
    assert query.schema is None
    declared = Query.scan(TableScan(table)).map(doubled, schema=pa.schema({"double": pa.float64()}))
    assert run(declared).schema == declared.schema
    assert run(declared.select("double"))["double"].to_pylist() == [2.0, 4.0, 6.0, 8.0]


def fail(_: pa.RecordBatch) -> Any:
    raise ValueError("no such word")


@pytest.mark.parametrize(
    ("build", "kind", "error"),
    [
        (lambda q: q.map(fail), UnitError, r"Map\(fail\): ValueError: no such word; mend"),
        (lambda q: q.map(lambda b: 3), UnitError, r"Map\(<lambda>\) returned a int; return a"),
        (
            lambda q: q.map(lambda b: b, schema=pa.schema({"x": pa.int64()})),
            SchemaError,
            r"returned value int64, and declares x int64",
        ),
        (lambda q: q.filter(lambda b: [True] * 99), UnitError, r"returned no mask of the batch"),
    ],
)
def test_a_function_that_fails_names_its_operator(
    build: Callable[[Query], Query], kind: type[Exception], error: str
) -> None:
    with pytest.raises(kind, match=error):
        run(build(Query.scan(TableScan(pa.table({"value": [1, 2]})))))


def test_a_key_of_a_type_without_equality_is_refused() -> None:
    table = pa.table({"key": [[1], [2]]})
    (batch,) = table.to_batches()
    with pytest.raises(SchemaError, match=r"'key' has type list<.*>, which cannot be a key"):
        list(split_rows(pa.Table.from_batches([batch]), ["key"], 4))


@given(tables(), st.integers(1, 7))
def test_partitions_hold_every_row_once_and_equal_keys_together(
    table: pa.Table, partitions: int
) -> None:
    parts = list(split_rows(table, ["key"], partitions))
    rows = [row for part in parts for row in part.rows.to_pylist()]
    assert multiset(rows) == multiset(table.to_pylist())
    homes: dict[Any, int] = {}
    for part in parts:
        assert 0 <= part.partition < partitions
        for row in part.rows.to_pylist():
            assert homes.setdefault(canonical(row["key"]), part.partition) == part.partition


def test_rows_of_a_partition_keep_their_order_however_many_partitions_there_are() -> None:
    keys = [number % 5_000 for number in range(20_000)]
    table = pa.table({"key": keys, "row": range(len(keys))})
    parts = list(split_rows(table, ["key"], PARTITIONS_MAX))
    numbers = [part.partition for part in parts]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > 255
    for part in parts:
        rows = part.rows["row"].to_pylist()
        assert rows == sorted(rows)
    assert sorted(row for part in parts for row in part.rows["row"].to_pylist()) == [*range(20_000)]


def test_the_columns_of_an_operator_are_those_of_its_rows() -> None:
    table = pa.table({"key": ["a"], "value": [1.5]})
    query = Query.scan(TableScan(table)).group_by("key").agg(n="count", v=("value", "stddev"))
    operator: Operator | None = query.root
    while operator is not None:
        below = inputs(operator)
        if below and (schema := schema_of(below[0])) is not None:
            assert apply(operator, schema.empty_table()).schema == schema_of(operator)
        operator = below[0] if below else None
