"""Aggregates that are easily got wrong: at the ends of a type, of rare types, of odd names."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import SchemaError, UsageError
from headrace.plan.query import Query
from tests.plan.plan_rows import plan_rows, run_plan
from tests.plan.sample_sources import TableScan, TableScanUnit

UNIT_ROWS = pytest.mark.parametrize("rows_per_unit", [1, 2, 100])


def grouped(values: Any, rows_per_unit: int = 100, **aggregates: Any) -> Query:
    """Return a query with one group, of the key 1."""
    table = pa.table({"key": [1] * len(values), "value": values})
    return (
        Query.scan(TableScan(table, rows_per_unit)).group_by("key", partitions=2).agg(**aggregates)
    )


def total(values: Any, rows_per_unit: int) -> Any:
    (row,) = plan_rows(grouped(values, rows_per_unit, total=("value", "sum")))
    return row["total"]


@UNIT_ROWS
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [2**63 - 1]),
        (pa.int64(), [-(2**63)]),
        (pa.int64(), [2**63 - 1, 1, -1]),
        (pa.int64(), [2**62, 2**62, -(2**62), None]),
        (pa.int64(), [-(2**63), -(2**63), 2**63 - 1, 1]),
        (pa.uint64(), [2**64 - 1]),
        (pa.uint64(), [2**63, 2**63 - 1]),
        (pa.int8(), [-128] * 300),
        (pa.uint8(), [255] * 300),
    ],
)
def test_a_sum_of_integers_that_fits_is_right_however_rows_are_divided(
    kind: pa.DataType, values: list[int], rows_per_unit: int
) -> None:
    expected = sum(each for each in values if each is not None)
    assert total(pa.array(values, kind), rows_per_unit) == expected


@UNIT_ROWS
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [2**63 - 1, 1]),
        (pa.int64(), [-(2**63), -1]),
        # Their sum as floats is below 2 ** 63, where the true sum is not.
        (pa.int64(), [2**62 + 257] * 2 + [-512]),
        (pa.int64(), [2**62] * 4),
        (pa.uint64(), [2**64 - 1, 1]),
        (pa.uint64(), [2**63] * 4),
    ],
)
def test_a_sum_of_integers_that_does_not_fit_is_an_error_however_rows_are_divided(
    kind: pa.DataType, values: list[int], rows_per_unit: int
) -> None:
    with pytest.raises(UsageError, match=r"total=sum\(value\): a sum does not fit into 64 bits"):
        total(pa.array(values, kind), rows_per_unit)


@UNIT_ROWS
@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal128(38, 5), pa.decimal128(20, 0)])
def test_a_sum_of_decimals_is_exact_or_an_error(kind: pa.DataType, rows_per_unit: int) -> None:
    # Arithmetic with decimals would round them to the digits of Python's decimal context.
    most, least = (Decimal((sign, (9,) * kind.precision, -kind.scale)) for sign in (0, 1))
    found = total(pa.array([most, most, least, None, least, most], kind), rows_per_unit)
    assert found == most
    if kind.precision == 38:
        with pytest.raises(UsageError, match=r"total=sum\(value\): a sum does not fit into 38 dig"):
            total(pa.array([most, most, most], kind), rows_per_unit)
    (column,) = run_plan(grouped(pa.array([most], kind), total=("value", "sum"))).select(["total"])
    assert column.type == pa.decimal128(38, kind.scale)


@UNIT_ROWS
def test_a_sum_of_decimals_of_256_bits_is_exact_or_refused(rows_per_unit: int) -> None:
    most = Decimal(10**57 - 1)
    expected = Decimal(3 * (10**57 - 1))
    assert total(pa.array([most] * 3, pa.decimal256(57, 0)), rows_per_unit) == expected
    with pytest.raises(
        SchemaError, match=r"'value' has type decimal256\(58, 0\), which has no sum"
    ):
        total(pa.array([most] * 3, pa.decimal256(58, 0)), rows_per_unit)


@UNIT_ROWS
@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (pa.duration("us"), dt.timedelta(-1), dt.timedelta(2)),
        (pa.float16(), -1.5, 2.25),
        (pa.decimal32(5, 2), Decimal("-1.50"), Decimal("999.99")),
        (pa.decimal64(12, 2), Decimal("-1.50"), Decimal("999.99")),
        (pa.binary(2), b"ab", b"cd"),
        (pa.large_binary(), b"ab", b"cd"),
        (pa.large_string(), "ab", "cd"),
        (pa.dictionary(pa.int8(), pa.string()), "ab", "cd"),
    ],
)
def test_the_least_and_the_most_of_a_type_that_has_an_order(
    kind: pa.DataType, least: Any, most: Any, rows_per_unit: int
) -> None:
    values = pa.array([most, None, least, most], kind)
    query = grouped(values, rows_per_unit, least=("value", "min"), most=("value", "max"))
    found = run_plan(query)
    assert found.to_pylist() == [{"key": 1, "least": least, "most": most}]
    assert found.schema == query.schema


@UNIT_ROWS
def test_views_of_text_and_bytes_become_text_and_bytes(rows_per_unit: int) -> None:
    long = "a text that is not kept in place"
    for kind, plain in (
        (pa.string_view(), pa.large_string()),
        (pa.binary_view(), pa.large_binary()),
    ):
        values = pa.array(["ab", None, long, long]).cast(pa.large_binary()).cast(kind)
        table = pa.table({"key": values, "value": values})
        query = (
            Query.scan(TableScan(table, rows_per_unit))
            .filter(lambda batch: batch["value"].is_valid())
            .map(lambda batch: batch, schema=table.schema)
            .group_by("key", partitions=3)
            .agg(n="count", least=("value", "min"))
        )
        found = run_plan(query).sort_by("n")
        assert (
            found.schema
            == query.schema
            == pa.schema({"key": plain, "n": pa.int64(), "least": plain})
        )
        texts = found["key"].cast(pa.large_binary()).to_pylist()
        assert texts == [b"ab", long.encode()]
        assert found["least"] == found["key"]


def test_the_least_of_values_without_an_order_is_refused() -> None:
    values = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    with pytest.raises(SchemaError, match=r"type month_day_nano_interval, which has no min"):
        grouped(values, least=("value", "min"))


@UNIT_ROWS
def test_numbers_of_narrow_types_have_sums_and_means(rows_per_unit: int) -> None:
    decimals = [Decimal("1.50"), None, Decimal("2.00")]
    for kind in (pa.decimal32(5, 2), pa.decimal64(12, 2)):
        query = grouped(
            pa.array(decimals, kind), rows_per_unit, total=("value", "sum"), mean=("value", "mean")
        )
        assert plan_rows(query) == [{"key": 1, "total": Decimal("3.50"), "mean": 1.75}]
    # The sum is no float of 16 bits.
    floats = pa.array([60_000.0, None, 60_000.0], pa.float16())
    query = grouped(floats, rows_per_unit, total=("value", "sum"), mean=("value", "mean"))
    (row,) = plan_rows(query)
    held = floats[0].as_py()
    assert (row["total"], row["mean"]) == (2 * held, held)


@UNIT_ROWS
def test_aggregates_of_nothing_but_nulls_are_null(rows_per_unit: int) -> None:
    names = ("sum", "min", "max", "mean", "variance", "stddev", "any", "all")
    wanted = {name: ("value", name) for name in names} | {"n": ("value", "count")}
    (row,) = plan_rows(grouped(pa.nulls(3), rows_per_unit, **wanted))
    assert row == {"key": 1, "n": 0} | dict.fromkeys(names)


@UNIT_ROWS
def test_a_dictionary_that_repeats_values_or_holds_a_null_is_one_of_its_values(
    rows_per_unit: int,
) -> None:
    values = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None, 3], pa.int8()), pa.array([5, 5, None, 7])
    )
    query = grouped(values, rows_per_unit, n=("value", "count"), total=("value", "sum"))
    assert plan_rows(query) == [{"key": 1, "n": 3, "total": 17}]


@dataclass(frozen=True)
class TablesScan:
    """Tables of one schema, each of which is a unit."""

    tables: tuple[pa.Table, ...]
    label: str

    @property
    def schema(self) -> pa.Schema:
        return self.tables[0].schema

    def units(self) -> Sequence[TableScanUnit]:
        return [TableScanUnit(f"{self.label} {n}", each) for n, each in enumerate(self.tables)]

    def __str__(self) -> str:
        return self.label


def test_units_may_have_dictionaries_that_differ() -> None:
    """Their values together are more than one dictionary of narrow indexes can hold."""
    kind = pa.dictionary(pa.int8(), pa.string())
    texts = [[f"text {n}" for n in range(first, first + 100)] for first in (0, 50, 150)]

    def scan(name: str) -> Query:
        tables = tuple(
            pa.table(
                {
                    "key": pa.array(each, kind),
                    name: pa.array(each, kind),
                    f"{name} list": pa.array([[text] for text in each], pa.list_(kind)),
                }
            )
            for each in texts
        )
        return Query.scan(TablesScan(tables, name))

    grouped = scan("left").group_by("key", partitions=2).agg(n="count", least=("left", "min"))
    found = run_plan(grouped)
    assert found.schema == pa.schema({"key": pa.string(), "n": pa.int64(), "least": pa.string()})
    assert found["n"].to_pylist().count(2) == 50
    assert run_plan(scan("left").distinct("key", partitions=2)).num_rows == 250
    joined = run_plan(scan("left").join(scan("right"), "key", partitions=2))
    assert joined.num_rows == 200 + 50 * 4
    assert joined["left"] == joined["right"] == joined["key"]
    assert joined.schema.field("left list").type == pa.list_(pa.string())


@UNIT_ROWS
def test_nan_is_left_out_of_the_least_and_the_most_unless_it_is_alone(rows_per_unit: int) -> None:
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        wanted = {"least": ("value", "min"), "most": ("value", "max"), "total": ("value", "sum")}
        values = pa.array([math.nan, 1.0, None, math.inf, math.nan], kind)
        (row,) = plan_rows(grouped(values, rows_per_unit, **wanted))
        assert (row["least"], row["most"]) == (1.0, math.inf)
        assert math.isnan(row["total"])
        (row,) = plan_rows(grouped(pa.array([math.nan, None], kind), rows_per_unit, **wanted))
        assert math.isnan(row["least"])
        assert math.isnan(row["most"])


@UNIT_ROWS
def test_no_name_of_a_column_is_taken(rows_per_unit: int) -> None:
    names = ["", "_sum", "total_sum", "n.n_count", "0", "left row"]
    table = pa.table([[1, 1, 2]] * len(names) + [[3, 4, 5]], [*names, "value"])
    query = Query.scan(TableScan(table, rows_per_unit)).group_by(*names, partitions=2)
    found = plan_rows(query.agg(total=("value", "sum"), n="count", v=("value", "variance")))
    found.sort(key=lambda row: row["total"])
    assert found == [
        dict.fromkeys(names, 2) | {"total": 5, "n": 1, "v": None},
        dict.fromkeys(names, 1) | {"total": 7, "n": 2, "v": 0.5},
    ]


def test_a_key_that_is_named_like_a_part_is_refused() -> None:
    table = pa.table({"total.sum": [1], "value": [1]})
    query = Query.scan(TableScan(table)).group_by("total.sum")
    with pytest.raises(SchemaError, match=r"the key 'total.sum' has the name of a part of total=s"):
        query.agg(total=("value", "sum"))
