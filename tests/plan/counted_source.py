"""A source of plans in tests whose reads are counted, and a query of it with its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.plan.plan_run import PlanRun
from headrace.plan.query import Query
from headrace.storage import Objects

ROWS = 40
KEYS = 7


@dataclass(frozen=True)
class CountedUnit:
    """Rows whose reads are counted."""

    name: str
    first: int
    rows: int
    reads: Counter[str]

    def read(self) -> pa.Table:
        self.reads[self.name] += 1
        numbers = range(self.first, self.first + self.rows)
        return pa.table(
            {
                "key": pa.array([each % KEYS for each in numbers], pa.int64()),
                "value": pa.array(list(numbers), pa.int64()),
            }
        )


@dataclass(frozen=True)
class CountedSource:
    reads: Counter[str]
    units_read: int = 8
    is_reversed: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"key": pa.int64(), "value": pa.int64()})

    def units(self) -> Sequence[CountedUnit]:
        size = ROWS // 8
        units = [
            CountedUnit(f"rows {first}", first, size, self.reads)
            for first in range(0, self.units_read * size, size)
        ]
        return units[::-1] if self.is_reversed else units

    def __str__(self) -> str:
        return "numbers"


def totals(source: CountedSource) -> Query:
    return Query.scan(source).group_by("key", partitions=3).agg(total=("value", "sum"))


def expected(rows: int = ROWS) -> dict[int, int]:
    found: Counter[int] = Counter()
    for each in range(rows):
        found[each % KEYS] += each
    return dict(found)


def rows_of(run: PlanRun) -> list[dict[str, Any]]:
    return list(run.table().to_pylist())


def results(run: PlanRun) -> dict[int, int]:
    rows = rows_of(run)
    found = {row["key"]: row["total"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def finished(name: str, query: Query, objects: Objects) -> PlanRun:
    run = PlanRun(name, query.stages, objects)
    run.run()
    return run
