"""Queries as users write them: a source, functions, aggregates and joins, a sink.

revenue = (
    hr.scan("orders/*.parquet", ws)
    .filter(is_paid)
    .group_by("country", partitions=8)
    .agg(orders="count", revenue=("cents", "sum"))
)
revenue.run("revenue").table()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, get_args

import pyarrow as pa

from headrace.errors import UsageError
from headrace.exchange import AttemptCleanup, BackgroundCleanup
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
from headrace.plan.plan_run import PlanRun, TaskRunner, ThreadTaskRunner
from headrace.plan.stages import StageGraph, cut_stages
from headrace.storage import Objects, open_objects

PARTITIONS = 16
"""Of a shuffle, unless the query says otherwise. It is part of the plan, not of the machine."""


NAME_CHARS = 200
"""Of the name of a query, at most."""


@dataclass(frozen=True)
class QueryHome:
    """Where a query runs: whose objects hold its shuffle files, and what runs its tasks."""

    objects: Callable[[], Objects]
    runner: Callable[[Any], TaskRunner]
    """Makes a runner on a Spark session."""


class Query:
    """Rows that are yet to be computed. Every method but `run` returns another query."""

    def __init__(self, root: Operator, home: QueryHome | None = None) -> None:
        self.root = root
        self._home = home
        schema_of(root)

    @classmethod
    def scan(cls, source: ScanSource, home: QueryHome | None = None) -> Query:
        return cls(SourceScan(source), home)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns; None if a function below declares none."""
        return schema_of(self.root)

    def map(
        self, function: Callable[..., Any], *, schema: pa.Schema | None = None, version: str = ""
    ) -> Query:
        """Apply a function to each record batch; it returns a record batch or a table."""
        _check_callable("map()", function, "a function of record batches")
        return self._grown(Map(self.root, function, schema, version))

    def filter(self, function: Callable[..., Any], *, version: str = "") -> Query:
        """Keep the rows of each record batch for which the returned mask is true."""
        _check_callable("filter()", function, "a function of record batches")
        return self._grown(Filter(self.root, function, version))

    def select(self, *columns: str) -> Query:
        """Keep these columns, in this order."""
        if not columns:
            raise UsageError("select() names no column", do="name the columns to keep")
        return self._grown(Project(self.root, columns))

    def group_by(self, *keys: str, partitions: int = PARTITIONS) -> GroupedQuery:
        """Group rows by key. Without keys all rows are one group."""
        return GroupedQuery(self, keys, partitions if keys else 1)

    def distinct(self, *keys: str, partitions: int = PARTITIONS) -> Query:
        """Keep one row for each key."""
        if not keys:
            raise UsageError("distinct() names no key", do="name the columns of the key")
        shuffled = ShuffleRead(ShuffleWrite(Distinct(self.root, keys), keys, partitions))
        return self._grown(Distinct(shuffled, keys))

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
        if not isinstance(other, Query):
            raise UsageError(
                f"join() got a {type(other).__name__}", do="give a query, begun with hr.scan"
            )
        if how not in get_args(JoinKind):
            raise UsageError(
                f"{how!r} is no kind of join", do=f"use one of {', '.join(get_args(JoinKind))}"
            )
        left, right = (
            ShuffleRead(ShuffleWrite(each.root, keys, partitions)) for each in (self, other)
        )
        return self._grown(HashJoin(left, right, keys, how))

    def repartition(self, *keys: str, partitions: int = PARTITIONS) -> Query:
        """Divide the rows by key: one task after this has all rows of a key."""
        if not keys:
            raise UsageError("repartition() names no key", do="name the columns of the key")
        return self._grown(ShuffleRead(ShuffleWrite(self.root, keys, partitions)))

    def sink(self, sink: Any, *, version: str = "") -> Query:
        """Hand the rows of each task to a function of them and a key, as an Arrow table.

        The key is text that names the rows: a task that is tried again has the same rows and key.
        A task whose output is published is not handed over again.
        """
        _check_callable("sink()", sink, "a function of a table and a key")
        return self._grown(PlanSink(self.root, sink, version))

    def _grown(self, root: Operator) -> Query:
        """Return a query that runs where this one does, and ends with another operator."""
        return Query(root, self._home)

    @property
    def stages(self) -> StageGraph:
        """The stages that the query is cut into."""
        return cut_stages(self.root)

    def run(
        self, name: str, spark: Any = None, *, objects: str | PathLike[str] | Objects = ""
    ) -> PlanRun:
        """Run the query, and return a run whose `table()` has its rows.

        A later run of the same name, in any application, computes only what is not there yet. Tasks
        are those of the Spark session, or threads of this process if none is given. Their output is
        kept in the workspace, or in `objects`, such as `s3://bucket/prefix`: every process that
        runs tasks must reach it.
        """
        _check_name(name)
        if self._home is None:
            raise UsageError(f"query {name!r} has no workspace", do="begin it with hr.scan")
        runner = self._home.runner(spark) if spark else ThreadTaskRunner(os.cpu_count() or 1)
        if isinstance(objects, str | PathLike):
            held = open_objects(fspath(objects)) if objects else self._home.objects()
        else:
            held = objects
        run = PlanRun(name, self.stages, held, runner)
        with BackgroundCleanup(AttemptCleanup(held)):
            run.run()
        return run


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > NAME_CHARS:
        raise UsageError(
            f"{name!r} is no name of a query", do=f"use text of 1 to {NAME_CHARS} characters"
        )


def _check_callable(where: str, given: object, wanted: str) -> None:
    if not callable(given):
        raise UsageError(f"{where} got a {type(given).__name__}", do=f"give {wanted}")


class GroupedQuery:
    """Rows that are grouped by key, until `agg` says what to make of each group."""

    def __init__(self, rows: Query, keys: tuple[str, ...], partitions: int) -> None:
        self._rows = rows
        self._keys = keys
        self._partitions = partitions

    def agg(self, **aggregates: Any) -> Query:
        """Return one row for each key: `agg(n="count", total=("cents", "sum"))`."""
        named = named_aggregates(aggregates)
        if taken := set(aggregates) & set(self._keys):
            raise UsageError(
                f"agg() names {sorted(taken)[0]!r}, which is a key", do="name the result otherwise"
            )
        partial = PartialHashAggregate(self._rows.root, self._keys, named)
        shuffled = ShuffleRead(ShuffleWrite(partial, self._keys, self._partitions))
        return self._rows._grown(FinalHashAggregate(shuffled, self._keys, named))
