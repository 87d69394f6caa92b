"""Random queries over random tables, run on shuffle files, against plain Python.

Keys are equal as in SQL's GROUP BY: null is a key, NaN equals NaN, -0.0 equals 0.0. A join leaves
nulls out.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan.operators import JoinKind
from headrace.plan.plan_run import PlanRun
from headrace.plan.query import Query
from headrace.storage import open_objects
from tests.plan.plan_rows import Rows, run_plan
from tests.plan.sample_sources import TableScan

pytestmark = pytest.mark.long

EXAMPLES = 25 if settings().max_examples <= 100 else 500
"""Fewer than usual: each runs a whole query."""
NAN = math.nan
FLOATS = [0.0, -0.0, NAN, -NAN, 1.5, -2.25, math.inf, -math.inf]
DAY = dt.date(1969, 12, 31)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 500)
LONG = "a text that is longer than a word of a hash"

KEYS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-1, 300],
    pa.int32(): [-1, 0, 2**31 - 1],
    pa.int64(): [-(2**63), 0, 2**63 - 1],
    pa.uint8(): [0, 255],
    pa.uint16(): [0, 2**16 - 1],
    pa.uint32(): [0, 2**32 - 1],
    pa.uint64(): [0, 2**63, 2**64 - 1],
    pa.float16(): FLOATS,
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.decimal128(18, 4): [Decimal("0.0000"), Decimal("-1.2500"), Decimal("99999999999999.9999")],
    pa.string(): ["", "a", "é", LONG],
    pa.large_string(): ["", "a", LONG],
    pa.string_view(): ["", "a", LONG],
    pa.binary(): [b"", b"\0", b"\0\0", b"ab"],
    pa.large_binary(): [b"", b"ab"],
    pa.binary_view(): [b"", b"a value that is kept elsewhere"],
    pa.binary(2): [b"ab", b"\0\0"],
    pa.date32(): [DAY, dt.date(2024, 2, 29)],
    pa.date64(): [DAY, dt.date(2024, 2, 29)],
    pa.time32("ms"): [dt.time(0), dt.time(23, 59, 59)],
    pa.time64("us"): [dt.time(0), dt.time(23, 59, 59, 999_999)],
    pa.timestamp("us"): [NOON, dt.datetime(1, 1, 1)],
    pa.timestamp("us", "UTC"): [NOON.replace(tzinfo=dt.UTC)],
    pa.duration("us"): [dt.timedelta(0), dt.timedelta(microseconds=-1)],
    pa.null(): [],
    pa.dictionary(pa.int8(), pa.string()): ["", "a", LONG],
    pa.dictionary(pa.int32(), pa.float64()): FLOATS,
}
"""Every type that a key may have, with values that are easily confused."""

OTHERS: dict[pa.DataType, list[Any]] = {
    pa.decimal32(5, 2): [Decimal("-1.50"), Decimal("999.99")],
    pa.decimal64(12, 2): [Decimal("0.00"), Decimal("7.25")],
    pa.decimal256(50, 2): [Decimal("-1.00"), Decimal("2.50")],
    pa.list_(pa.int64()): [[], [1, None]],
    pa.list_(pa.dictionary(pa.int8(), pa.string())): [["a", "b"], ["c"]],
    pa.struct({"a": pa.int64(), "b": pa.string()}): [{"a": 1, "b": None}],
    pa.map_(pa.string(), pa.int32()): [[("a", 1)]],
    pa.list_(pa.float32(), 2): [[0.5, 1.5]],
}
VALUES = KEYS | OTHERS
"""Every type that a value may have."""


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, list | dict):
        return repr(value)
    return value


def key_of(row: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(canonical(row[name]) for name in names)


def multiset(rows: Rows) -> Counter[Any]:
    return Counter(tuple((name, canonical(row[name])) for name in sorted(row)) for row in rows)


@st.composite
def columns(draw: st.DrawFn, kinds: dict[pa.DataType, list[Any]], rows: int) -> pa.Array:
    """Draw a column in which values repeat, and the first one is a hot one."""
    kind = draw(st.sampled_from(list(kinds)))
    pool = [*kinds[kind], None]
    hot = draw(st.integers(0, 12))
    values = draw(
        st.lists(
            st.sampled_from([pool[0]] * hot + pool),
            min_size=rows,
            max_size=rows,
        )
    )
    return pa.array(values, kind)


@dataclass(frozen=True)
class Given:
    """A table with the keys `a` and `b`, and how it is divided."""

    table: pa.Table
    rows_per_unit: int
    partitions: int
    label: str = "left"

    @property
    def query(self) -> Query:
        return Query.scan(TableScan(self.table, self.rows_per_unit, self.label))

    @property
    def rows(self) -> Rows:
        rows: Rows = self.table.to_pylist()
        return rows


@st.composite
def tables(draw: st.DrawFn) -> Given:
    count = draw(st.one_of(st.integers(0, 6), st.integers(0, 40)))
    table = pa.table(
        {
            "a": draw(columns(KEYS, count)),
            "b": draw(columns(KEYS, count)),
            "value": draw(columns(VALUES, count)),
            "row": pa.array(range(count), pa.int64()),
        }
    )
    return Given(table, draw(st.integers(1, 15)), draw(st.integers(1, 6)))


NAMES = st.sampled_from([("a",), ("b", "a"), ()])


def is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def names_of(kind: pa.DataType) -> tuple[str, ...]:
    """Return the aggregates that a type has."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return "count", "min", "max", "any", "all"
    if pa.types.is_null(kind):
        return "count", "sum", "min", "max", "mean", "variance", "stddev", "any", "all"
    if is_number(kind):
        return "count", "sum", "min", "max", "mean", "variance", "stddev"
    return ("count",) if pa.types.is_nested(kind) else ("count", "min", "max")


def expected_aggregate(name: str, kind: pa.DataType, values: list[Any]) -> Any:
    """Return an aggregate of values, none of which is null."""
    if name == "count":
        return len(values)
    if not values or (name in ("variance", "stddev") and len(values) < 2):
        return None
    if name in ("any", "all"):
        return any(values) if name == "any" else all(values)
    if name in ("min", "max"):
        plain = [each for each in values if each == each] or [NAN]
        return min(plain) if name == "min" else max(plain)
    if name == "sum":
        return float_sum(values) if isinstance(values[0], float) else sum(values)
    return spread(name, [float(each) for each in values])


def spread(name: str, values: list[float]) -> float:
    mean = float_sum(values) / len(values)
    if name == "mean":
        return mean
    squares = [(each - mean) ** 2 for each in values]
    variance = float_sum(squares) / (len(values) - 1)
    return math.sqrt(variance) if name == "stddev" else variance


def float_sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # inf and -inf
        return sum(values)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isfinite(expected):
        return bool(found == pytest.approx(expected, rel=1e-9, abs=1e-9))
    return bool(canonical(found) == canonical(expected))


@settings(max_examples=EXAMPLES)
@given(tables(), NAMES)
def test_an_aggregate_is_that_of_all_rows_of_its_key(given: Given, keys: tuple[str, ...]) -> None:
    kind = given.table.schema.field("value").type
    wanted = {f"is {name}": ("value", name) for name in fitting(kind, given.rows)}
    query = given.query.group_by(*keys, partitions=given.partitions).agg(n="count", **wanted)
    groups: dict[Any, Rows] = defaultdict(list)
    for row in given.rows:
        groups[key_of(row, keys)].append(row)
    if not keys:
        groups.setdefault((), [])
    result = run_plan(query)
    found = {key_of(row, keys): row for row in result.to_pylist()}
    assert result.schema == query.schema
    assert len(found) == result.num_rows, "a key is there twice"
    assert found.keys() == groups.keys()
    for key, rows in groups.items():
        assert found[key]["n"] == len(rows)
        values = [row["value"] for row in rows if row["value"] is not None]
        for output, (_, name) in wanted.items():
            expected = expected_aggregate(name, kind, values)
            assert same(found[key][output], expected), f"{name} of {values}"


def fitting(kind: pa.DataType, rows: Rows) -> list[str]:
    """Return the aggregates of a type; no sum if some sum may be too large for its type."""
    names = list(names_of(kind))
    if pa.types.is_integer(kind):
        least, most = (0, 2**64) if kind == pa.uint64() else (-(2**63), 2**63)
        values = [row["value"] for row in rows if row["value"] is not None]
        fits = sum(v for v in values if v > 0) < most and sum(v for v in values if v < 0) >= least
        if not fits:
            names.remove("sum")
    return names


@settings(max_examples=EXAMPLES)
@given(tables(), NAMES.filter(bool))
def test_distinct_keeps_one_row_for_each_key(given: Given, keys: tuple[str, ...]) -> None:
    found = run_plan(given.query.distinct(*keys, partitions=given.partitions)).to_pylist()
    rows = given.rows
    assert Counter(key_of(row, keys) for row in found) == Counter({key_of(r, keys) for r in rows})
    assert multiset(found) <= multiset(rows), "it is one of the rows"


@st.composite
def joined_tables(draw: st.DrawFn) -> tuple[Given, Given]:
    """Draw two tables whose keys are of the same types, and often equal."""
    left = draw(tables())
    kinds = [left.table.schema.field(name).type for name in ("a", "b")]
    pairs = st.tuples(*(st.sampled_from([*KEYS[kind], None]) for kind in kinds))
    if keys := [(row["a"], row["b"]) for row in left.rows]:
        pairs |= st.sampled_from(keys)
    chosen = draw(st.lists(pairs, max_size=25))
    lonely = draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)))
    right = pa.table(
        {
            "a": pa.array(
                [None if none else a for (a, _), none in zip(chosen, lonely, strict=True)],
                kinds[0],
            ),
            "b": pa.array([b for _, b in chosen], kinds[1]),
            "other": draw(columns(VALUES, len(chosen))),
            "other row": pa.array(range(len(chosen)), pa.int64()),
        }
    )
    return left, Given(right, draw(st.integers(1, 15)), left.partitions, "right")


@settings(max_examples=EXAMPLES)
@given(joined_tables(), NAMES.filter(bool))
def test_a_join_has_every_pair_of_equal_keys(
    both: tuple[Given, Given], keys: tuple[str, ...]
) -> None:
    left, right = both
    if keys == ("a",):
        right = replace(right, table=right.table.drop_columns(["b"]))
    for how, rows in expected_joins(left, right, keys).items():
        query = left.query.join(right.query, keys, how=how, partitions=left.partitions)
        found = run_plan(query)
        assert multiset(found.to_pylist()) == multiset(rows), how


def expected_joins(left: Given, right: Given, keys: tuple[str, ...]) -> dict[JoinKind, Rows]:
    by_key: dict[Any, Rows] = defaultdict(list)
    for row in right.rows:
        if None not in key_of(row, keys):
            by_key[key_of(row, keys)].append(row)
    matched = {key_of(row, keys) for row in left.rows} & by_key.keys()
    here = [row for row in left.rows if key_of(row, keys) in matched]
    lonely = [row for row in left.rows if key_of(row, keys) not in matched]
    others = [row for row in right.rows if key_of(row, keys) not in matched]
    pairs = [row | other for row in here for other in by_key[key_of(row, keys)]]
    lefts = [dict.fromkeys(right.table.column_names) | row for row in lonely]
    rights = [dict.fromkeys(left.table.column_names) | row for row in others]
    return {
        "inner": pairs,
        "left": pairs + lefts,
        "right": pairs + rights,
        "full": pairs + lefts + rights,
        "semi": here,
        "anti": lonely,
    }


@dataclass(frozen=True)
class Step:
    """A step of a query over the whole numbers `n` and `m`, and what it does to rows."""

    name: str
    grow: Callable[[Query], Query]
    apply: Callable[[Rows], Rows]


def steps(divisor: int, partitions: int) -> list[Step]:
    def keep(batch: pa.RecordBatch) -> pa.Array:
        return pc.not_equal(pc.divide(batch["n"], divisor), 1)

    def exchange(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"m": batch["n"], "n": pc.add(batch["m"], divisor)})

    def count(rows: Rows) -> Rows:
        found: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            found[row["m"]].append(row["n"])
        return [{"m": m, "n": sum(each)} for m, each in found.items()]

    def join(rows: Rows) -> Rows:
        largest: dict[int, int] = {}
        for row in rows:
            largest[row["m"]] = max(row["n"], largest.get(row["m"], row["n"]))
        return [{"m": row["m"], "n": largest[row["m"]]} for row in rows]

    def largest(query: Query) -> Query:
        return query.group_by("m", partitions=partitions).agg(n=("n", "max"))

    schema = pa.schema({"m": pa.int64(), "n": pa.int64()})
    return [
        Step(
            "filter",
            lambda query: query.filter(keep),
            lambda rows: [row for row in rows if int(row["n"] / divisor) != 1],
        ),
        Step(
            "map",
            lambda query: query.map(exchange),
            lambda rows: [{"m": row["n"], "n": row["m"] + divisor} for row in rows],
        ),
        Step(
            "declared map",
            lambda query: query.map(exchange, schema=schema),
            lambda rows: [{"m": row["n"], "n": row["m"] + divisor} for row in rows],
        ),
        Step("select", lambda query: query.select("n", "m"), lambda rows: rows),
        Step(
            "distinct",
            lambda query: query.distinct("m", "n", partitions=partitions),
            lambda rows: [dict(row) for row in {tuple(sorted(row.items())) for row in rows}],
        ),
        Step(
            "group",
            lambda query: query.group_by("m", partitions=partitions).agg(n=("n", "sum")),
            count,
        ),
        Step(
            "repartition", lambda query: query.repartition("n", partitions=partitions), lambda r: r
        ),
        Step(
            "join",
            lambda query: query.select("m").join(largest(query), "m", partitions=partitions),
            join,
        ),
    ]


@st.composite
def chains(draw: st.DrawFn) -> list[Step]:
    found = []
    for _ in range(draw(st.integers(1, 5))):
        offered = steps(draw(st.integers(1, 4)), draw(st.integers(1, 5)))
        found.append(draw(st.sampled_from(offered)))
    return found


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(st.integers(-5, 9), st.integers(0, 3)), min_size=1, max_size=30),
    chains(),
    st.integers(1, 12),
)
def test_a_chain_of_operators_has_the_rows_of_its_steps_and_is_not_computed_again(
    values: list[tuple[int, int]], chain: list[Step], rows_per_unit: int
) -> None:
    # proves G21
    rows: Rows = [{"m": m, "n": n} for n, m in values]
    table = pa.Table.from_pylist(rows, pa.schema({"m": pa.int64(), "n": pa.int64()}))
    query = Query.scan(TableScan(table, rows_per_unit))
    for step in chain:
        query, rows = step.grow(query), step.apply(rows)
    objects = open_objects("memory://")
    for is_first in (True, False):
        run = PlanRun("chain", query.stages, objects)
        run.run()
        assert multiset(run.table().to_pylist()) == multiset(rows)
        computed = sum(report.computed for report in run.reports.values())
        assert (computed > 0) == is_first
