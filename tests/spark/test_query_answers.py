"""Queries like TPC-H's 1, 3, 6 and 18 have the answers of Spark SQL.

All amounts are whole cents and all quantities whole numbers, so that answers are equal to the last
digit.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.plan.plan_run import PlanRun
from tests.plan.plan_rows import Rows

FIRST_DAY = dt.date(1992, 1, 1)
DAYS = 2_405
"""Orders are of the years 1992 to 1998."""
SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"]
LINES = 600_000
"""Of TPC-H's scale 0.1."""
FILES = 3
ROWS_PER_UNIT = 50_000


def write_tables(folder: Path, lines: int) -> None:
    """Write customers, orders and their lines: on average four lines to an order."""
    random = np.random.default_rng(42)
    orders, customers = lines // 4, lines // 40
    first = (FIRST_DAY - dt.date(1970, 1, 1)).days
    order_days = random.integers(first, first + DAYS, orders)
    # As in TPC-H, a third of the customers have no order, and order numbers have gaps.
    order_keys = np.arange(orders) * 4 + 1
    chosen = random.integers(0, orders, lines)
    ship_days = order_days[chosen] + random.integers(1, 122, lines)
    is_late = ship_days > first + DAYS * 8 // 10
    tables = {
        "customer": {
            "custkey": pa.array(np.arange(customers)),
            "name": pa.array([f"Customer#{number:09}" for number in range(customers)]),
            "mktsegment": _choice(random, SEGMENTS, customers),
        },
        "orders": {
            "orderkey": pa.array(order_keys),
            "custkey": pa.array(random.integers(0, customers * 2 // 3, orders)),
            "orderdate": _dates(order_days),
            "totalprice": pa.array(random.integers(100_000, 50_000_000, orders)),
            "shippriority": pa.array(np.zeros(orders, np.int32)),
        },
        "lineitem": {
            "orderkey": pa.array(order_keys[chosen]),
            "quantity": pa.array(random.integers(1, 51, lines)),
            "extendedprice": pa.array(random.integers(90_000, 10_000_000, lines)),
            "discount": pa.array(random.integers(0, 11, lines)),
            "tax": pa.array(random.integers(0, 9, lines)),
            "returnflag": pc.if_else(
                pa.array(is_late), pa.scalar("N"), _choice(random, ["A", "R"], lines)
            ),
            "linestatus": pc.if_else(pa.array(is_late), pa.scalar("O"), pa.scalar("F")),
            "shipdate": _dates(ship_days),
        },
    }
    for name, columns in tables.items():
        table = pa.table(columns)
        size = -(-table.num_rows // FILES)
        (folder / name).mkdir(parents=True)
        for number in range(FILES):
            part = table.slice(number * size, size)
            pq.write_table(part, folder / name / f"{number}.parquet", row_group_size=size // 4 + 1)


def _choice(random: np.random.Generator, texts: list[str], count: int) -> pa.Array:
    return pa.array(texts).take(pa.array(random.integers(0, len(texts), count)))


def _dates(days: Any) -> pa.Array:
    return pa.array(days.astype(np.int32)).cast(pa.date32())


class Tables:
    """The tables as Headrace and as Spark see them."""

    def __init__(self, folder: Path, workspace: hr.Workspace, spark: SparkSession) -> None:
        self._folder = folder
        self._workspace = workspace
        self._spark = spark
        for name in ("customer", "orders", "lineitem"):
            spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)

    def scan(self, name: str) -> hr.Query:
        files = str(self._folder / name / "*.parquet")
        return hr.scan(files, self._workspace, rows_per_unit=ROWS_PER_UNIT)

    def answer(self, name: str, query: hr.Query) -> PlanRun:
        return query.run(name, self._spark)

    def expected(self, text: str) -> Rows:
        found = self._spark.sql(text)
        return [row.asDict() for row in found.collect()]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Tables]:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder, LINES)
    with hr.open(folder / "workspace") as workspace:
        yield Tables(folder, workspace, spark)


def before(column: str, day: dt.date) -> Callable[[pa.RecordBatch], pa.Array]:
    def is_before(batch: pa.RecordBatch) -> pa.Array:
        return pc.less(batch[column], pa.scalar(day))

    return is_before


def after(column: str, day: dt.date) -> Callable[[pa.RecordBatch], pa.Array]:
    def is_after(batch: pa.RecordBatch) -> pa.Array:
        return pc.greater(batch[column], pa.scalar(day))

    return is_after


def with_revenue(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the price less the discount, in hundredths of a cent."""
    left = pc.subtract(100, batch["discount"])
    return batch.append_column("revenue", pc.multiply(batch["extendedprice"], left))


def with_charge(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the revenue with tax, in ten thousandths of a cent."""
    batch = with_revenue(batch)
    return batch.append_column("charge", pc.multiply(batch["revenue"], pc.add(100, batch["tax"])))


def test_1_prices_by_flag_and_status(tables: Tables) -> None:
    query = (
        tables.scan("lineitem")
        .filter(before("shipdate", dt.date(1998, 9, 3)))
        .map(with_charge)
        .group_by("returnflag", "linestatus", partitions=4)
        .agg(
            sum_qty=("quantity", "sum"),
            sum_base_price=("extendedprice", "sum"),
            sum_disc_price=("revenue", "sum"),
            sum_charge=("charge", "sum"),
            avg_qty=("quantity", "mean"),
            avg_disc=("discount", "mean"),
            count_order="count",
        )
    )
    order: Any = [("returnflag", "ascending"), ("linestatus", "ascending")]
    found = tables.answer("q1", query).table().sort_by(order).to_pylist()
    assert found == tables.expected("""
        SELECT returnflag, linestatus, sum(quantity) sum_qty, sum(extendedprice) sum_base_price,
            sum(extendedprice * (100 - discount)) sum_disc_price,
            sum(extendedprice * (100 - discount) * (100 + tax)) sum_charge,
            avg(quantity) avg_qty, avg(discount) avg_disc, count(*) count_order
        FROM lineitem WHERE shipdate <= DATE'1998-09-02'
        GROUP BY returnflag, linestatus ORDER BY returnflag, linestatus
        """)
    assert len(found) == 3


def test_3_the_orders_of_most_value_that_are_not_shipped(tables: Tables) -> None:
    day = dt.date(1995, 3, 15)

    def is_building(batch: pa.RecordBatch) -> pa.Array:
        return pc.equal(batch["mktsegment"], "BUILDING")

    customers = tables.scan("customer").filter(is_building).select("custkey")
    orders = (
        tables.scan("orders")
        .filter(before("orderdate", day))
        .join(customers, "custkey", partitions=4)
        .select("orderkey", "orderdate", "shippriority")
    )
    schema = pa.schema({"orderkey": pa.int64(), "revenue": pa.int64()})
    query = (
        tables.scan("lineitem")
        .filter(after("shipdate", day))
        .map(lambda batch: with_revenue(batch).select(["orderkey", "revenue"]), schema=schema)
        .join(orders, "orderkey", partitions=4)
        .group_by("orderkey", "orderdate", "shippriority", partitions=4)
        .agg(revenue=("revenue", "sum"))
        .select("orderkey", "revenue", "orderdate", "shippriority")
    )
    order: Any = [
        ("revenue", "descending"),
        ("orderdate", "ascending"),
        ("orderkey", "ascending"),
    ]
    found = tables.answer("q3", query).table().sort_by(order)
    expected = tables.expected("""
        SELECT l.orderkey, sum(extendedprice * (100 - discount)) revenue, orderdate, shippriority
        FROM customer c JOIN orders o ON c.custkey = o.custkey
            JOIN lineitem l ON l.orderkey = o.orderkey
        WHERE mktsegment = 'BUILDING' AND orderdate < DATE'1995-03-15'
            AND shipdate > DATE'1995-03-15'
        GROUP BY l.orderkey, orderdate, shippriority
        ORDER BY revenue DESC, orderdate, l.orderkey
        """)
    assert found.to_pylist() == expected
    assert len(expected) > 100


def test_6_what_small_discounts_cost(tables: Tables) -> None:
    def is_wanted(batch: pa.RecordBatch) -> pa.Array:
        discount = batch["discount"]
        is_small = pc.and_(pc.greater_equal(discount, 5), pc.less_equal(discount, 7))
        return pc.and_(is_small, pc.less(batch["quantity"], 24))

    def discounted(batch: pa.RecordBatch) -> pa.RecordBatch:
        cost = pc.multiply(batch["extendedprice"], batch["discount"])
        return pa.record_batch({"cost": cost})

    query = (
        tables.scan("lineitem")
        .filter(after("shipdate", dt.date(1993, 12, 31)))
        .filter(before("shipdate", dt.date(1995, 1, 1)))
        .filter(is_wanted)
        .map(discounted)
        .group_by()
        .agg(revenue=("cost", "sum"))
    )
    expected = tables.expected("""
        SELECT sum(extendedprice * discount) revenue FROM lineitem
        WHERE shipdate >= DATE'1994-01-01' AND shipdate < DATE'1995-01-01'
            AND discount BETWEEN 5 AND 7 AND quantity < 24
        """)
    assert tables.answer("q6", query).table().to_pylist() == expected
    assert expected[0]["revenue"]


def test_18_customers_with_large_orders(tables: Tables) -> None:
    def is_large(batch: pa.RecordBatch) -> pa.Array:
        return pc.greater(batch["quantity"], 250)

    large = (
        tables.scan("lineitem")
        .group_by("orderkey", partitions=4)
        .agg(quantity=("quantity", "sum"))
        .filter(is_large)
    )
    schema = pa.schema({"custkey": pa.int64(), "name": pa.string()})
    customers = tables.scan("customer").map(lambda b: b.select(schema.names), schema=schema)
    query = (
        tables.scan("orders")
        .join(large.select("orderkey"), "orderkey", how="semi", partitions=4)
        .join(customers, "custkey", partitions=4)
        .join(large, "orderkey", partitions=4)
        .select("name", "custkey", "orderkey", "orderdate", "totalprice", "quantity")
    )
    order: Any = [("totalprice", "descending"), ("orderkey", "ascending")]
    found = tables.answer("q18", query).table().sort_by(order)
    expected = tables.expected("""
        SELECT name, c.custkey, o.orderkey, orderdate, totalprice, sum(quantity) quantity
        FROM customer c JOIN orders o ON c.custkey = o.custkey
            JOIN lineitem l ON o.orderkey = l.orderkey
        WHERE o.orderkey IN
            (SELECT orderkey FROM lineitem GROUP BY orderkey HAVING sum(quantity) > 250)
        GROUP BY name, c.custkey, o.orderkey, orderdate, totalprice
        ORDER BY totalprice DESC, o.orderkey
        """)
    assert found.to_pylist() == expected
    assert len(expected) > 10
