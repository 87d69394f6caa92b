"""Queries as users write them: a source, functions, aggregates and joins, a sink.

query = (
    hr.scan("orders/*.parquet")
    .filter(is_paid)
    .group_by("country", partitions=8)
    .agg(orders="count", revenue=("cents", "sum"))
)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import UsageError
from headrace.plan.aggregates import named_aggregates
from headrace.plan.kernels import schema_of
from headrace.plan.operators import (
    Distinct,
    Filter,
    FinalHashAggregate,
    HashJoin,
    JoinKind,
    Map,
    Operator,
    PartialHashAggregate,
    PlanSink,
    Project,
    ScanSource,
    ShuffleRead,
    ShuffleWrite,
    SourceScan,
)
from headrace.plan.stages import StageGraph, cut_stages

PARTITIONS = 16
"""Of a shuffle, unless the query says otherwise. It is part of the plan, not of the machine."""


class Query:
    """Rows that are yet to be computed. Every method returns another query."""

    def __init__(self, root: Operator) -> None:
        self.root = root
        schema_of(root)

    @classmethod
    def scan(cls, source: ScanSource) -> Query:
        return cls(SourceScan(source))

    @property
    def schema(self) -> pa.Schema | None:
        """The columns; None if a function below declares none."""
        return schema_of(self.root)

    def map(
        self, function: Callable[..., Any], *, schema: pa.Schema | None = None, version: str = ""
    ) -> Query:
        """Apply a function to each record batch; it returns a record batch or a table."""
        return Query(Map(self.root, function, schema, version))

    def filter(self, function: Callable[..., Any], *, version: str = "") -> Query:
        """Keep the rows of each record batch for which the returned mask is true."""
        return Query(Filter(self.root, function, version))

    def select(self, *columns: str) -> Query:
        """Keep these columns, in this order."""
        return Query(Project(self.root, columns))

    def group_by(self, *keys: str, partitions: int = PARTITIONS) -> GroupedQuery:
        """Group rows by key. Without keys all rows are one group."""
        return GroupedQuery(self.root, keys, partitions if keys else 1)

    def distinct(self, *keys: str, partitions: int = PARTITIONS) -> Query:
        """Keep one row for each key."""
        if not keys:
            raise UsageError("distinct() names no key", do="name the columns of the key")
        shuffled = ShuffleRead(ShuffleWrite(Distinct(self.root, keys), keys, partitions))
        return Query(Distinct(shuffled, keys))

    def join(
        self,
        other: Query,
        on: str | Sequence[str],
        *,
        how: JoinKind = "inner",
        partitions: int = PARTITIONS,
    ) -> Query:
        """Join with another query on columns that both have."""
        keys = (on,) if isinstance(on, str) else tuple(on)
        if not keys:
            raise UsageError("join() names no column", do="name the columns to join on")
        left, right = (
            ShuffleRead(ShuffleWrite(each.root, keys, partitions)) for each in (self, other)
        )
        return Query(HashJoin(left, right, keys, how))

    def sink(self, sink: Any) -> Query:
        """Hand the rows of each task to a sink."""
        return Query(PlanSink(self.root, sink))

    @property
    def stages(self) -> StageGraph:
        """The stages that the query is cut into."""
        return cut_stages(self.root)


class GroupedQuery:
    """Rows that are grouped by key, until `agg` says what to make of each group."""

    def __init__(self, root: Operator, keys: tuple[str, ...], partitions: int) -> None:
        self._root = root
        self._keys = keys
        self._partitions = partitions

    def agg(self, **aggregates: Any) -> Query:
        """Return one row for each key: `agg(n="count", total=("cents", "sum"))`."""
        named = named_aggregates(aggregates)
        if taken := set(aggregates) & set(self._keys):
            raise UsageError(
                f"agg() names {sorted(taken)[0]!r}, which is a key", do="name the result otherwise"
            )
        partial = PartialHashAggregate(self._root, self._keys, named)
        shuffled = ShuffleRead(ShuffleWrite(partial, self._keys, self._partitions))
        return Query(FinalHashAggregate(shuffled, self._keys, named))
