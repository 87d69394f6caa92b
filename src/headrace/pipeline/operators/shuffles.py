"""Operators that bring the rows of a key together: group, join, distinct. Pure.

Each is a query over all rows of the stages above. Like those of `plan/`, it knows columns by their
names alone, so a column that is not there shows as soon as the columns above are known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from headrace.errors import UsageError
from headrace.pipeline.contract import OnError, OperatorContext
from headrace.pipeline.source.source_units import ROWS_PER_UNIT, digest
from headrace.pipeline.source.sources import check_rows_per_unit
from headrace.plan.aggregates import named_aggregates
from headrace.plan.operators import DescribedSource, JoinKind
from headrace.plan.query import PARTITIONS, Query

_KEEPS_LEFT = ("left", "full", "anti")
_KEEPS_RIGHT = ("right", "full")


class ShuffleOperator(ABC):
    """The operator of such a stage. It stays in the driver."""

    expensive = False
    on_error: OnError = "fail"
    takes_all = True
    sides = 1
    """How many inputs it tells apart. If it is one, the stages above are one input together."""

    def __init__(self, partitions: int, rows_per_unit: int) -> None:
        """Its result is stored in units of up to `rows_per_unit` rows."""
        self.partitions = partitions
        self.rows_per_unit = check_rows_per_unit(rows_per_unit)
        self.columns([None] * self.sides)

    @abstractmethod
    def query(self, inputs: Sequence[Query | None]) -> Query | None:
        """Return what to compute of the inputs.

        An input is None if it has no rows, and its columns are not known. The result is None if it
        would be as unknown.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Identify everything that the result depends on."""

    def columns(self, above: Sequence[pa.Schema | None]) -> pa.Schema | None:
        """Return the columns of the result; None unless those of all inputs are known.

        Raises UsageError, which names operator and column, if the query could not run.
        """
        query = self.query([Query.scan(DescribedSource(each, "rows")) for each in above])
        assert query is not None
        _ = query.stages
        return query.schema

    async def open(self, context: OperatorContext) -> NoReturn:
        raise UsageError(
            f"stage {context.stage!r} has no workers", do="let the runner run its query"
        )


class GroupOperator(ShuffleOperator):
    """Makes one row of the rows of each key."""

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Any],
        *,
        partitions: int = PARTITIONS,
        rows_per_unit: int = ROWS_PER_UNIT,
    ) -> None:
        """Without keys all rows are one group. `aggregates` are those of `Query.agg`."""
        self._keys = tuple(keys)
        self._given = dict(aggregates)
        self._aggregates = named_aggregates(aggregates)
        super().__init__(partitions, rows_per_unit)

    def query(self, inputs: Sequence[Query | None]) -> Query | None:
        (rows,) = inputs
        if rows is None:
            return None
        return rows.group_by(*self._keys, partitions=self.partitions).agg(**self._given)

    def fingerprint(self) -> str:
        return digest("group by", repr((self._keys, self._aggregates, self.partitions)))

    def __str__(self) -> str:
        aggregates = ", ".join(map(str, self._aggregates))
        return f"group_by({', '.join(self._keys)}): {aggregates}"


class DistinctOperator(ShuffleOperator):
    """Keeps one row of each key."""

    def __init__(
        self,
        keys: Sequence[str],
        *,
        partitions: int = PARTITIONS,
        rows_per_unit: int = ROWS_PER_UNIT,
    ) -> None:
        self._keys = tuple(keys)
        super().__init__(partitions, rows_per_unit)

    def query(self, inputs: Sequence[Query | None]) -> Query | None:
        (rows,) = inputs
        return None if rows is None else rows.distinct(*self._keys, partitions=self.partitions)

    def fingerprint(self) -> str:
        return digest("distinct", repr((self._keys, self.partitions)))

    def __str__(self) -> str:
        return f"distinct({', '.join(self._keys)})"


class JoinOperator(ShuffleOperator):
    """Joins the rows of two stages that have equal keys."""

    sides = 2

    def __init__(
        self,
        on: str | Sequence[str],
        how: JoinKind = "inner",
        *,
        partitions: int = PARTITIONS,
        rows_per_unit: int = ROWS_PER_UNIT,
    ) -> None:
        self._on = (on,) if isinstance(on, str) else tuple(on)
        self._how: JoinKind = how
        super().__init__(partitions, rows_per_unit)

    def query(self, inputs: Sequence[Query | None]) -> Query | None:
        """Where one side has neither rows nor columns, the other's rows have no match."""
        left, right = inputs
        if left is not None and right is not None:
            return left.join(right, self._on, how=self._how, partitions=self.partitions)
        if left is not None:
            return left if self._how in _KEEPS_LEFT else None
        return right if self._how in _KEEPS_RIGHT else None

    def fingerprint(self) -> str:
        return digest("join", repr((self._on, self._how, self.partitions)))

    def __str__(self) -> str:
        return f"join({self._how}, on {', '.join(self._on)})"
