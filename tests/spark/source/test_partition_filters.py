"""Which filters partition labels decide."""

from __future__ import annotations

from datetime import date, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    Not,
)

from headrace.journal.collection import Collection, define
from headrace.shuffle import Binding
from headrace.shuffle.binding import Source, resolve
from headrace.spark.source.partition_filters import label_selectors

FIELDS = "region, level, open, day"


@pytest.fixture(scope="module")
def source() -> Source:
    schema = "n long, region string, level int, open boolean, day date"
    collection = Collection(define("a", schema, partition_by=FIELDS))
    return resolve([Binding(collection="a")], {"a": collection}, {}).all[0]


@pytest.mark.parametrize(
    ("filter", "labels"),
    [
        (EqualTo(("region",), "a/b"), {"region": ("a%2Fb",)}),
        (EqualTo(("region",), ""), {"region": ("%empty",)}),
        (EqualTo(("level",), -7), {"level": ("-7",)}),
        (EqualTo(("open",), True), {"open": ("true",)}),
        (EqualTo(("day",), date(2026, 11, 15)), {"day": ("2026-11-15",)}),
        (In(("region",), ("x", None, "y")), {"region": ("x", "y")}),
        (EqualNullSafe(("region",), None), {"region": ("%null",)}),
        (IsNull(("open",)), {"open": ("%null",)}),
    ],
)
def test_equality_is_decided_by_the_label(
    source: Source, filter: Filter, labels: dict[str, tuple[str, ...]]
) -> None:
    (found,) = label_selectors([filter], source)
    assert found.include == labels


@pytest.mark.parametrize(
    "filter",
    [
        EqualTo(("n",), 1),
        EqualTo(("region", "inner"), "x"),
        EqualTo(("region",), None),
        EqualTo(("region",), 7),
        EqualTo(("level",), "7"),
        EqualTo(("level",), True),
        EqualTo(("open",), 1),
        EqualTo(("day",), datetime(2026, 11, 15)),
        EqualTo(("level",), 7.0),
        In(("level",), (7, "8")),
        Not(EqualTo(("region",), "x")),
        GreaterThan(("level",), 1),
        IsNotNull(("region",)),
    ],
)
def test_of_everything_else_nothing_is_left_out(source: Source, filter: Filter) -> None:
    assert label_selectors([filter], source) == []
