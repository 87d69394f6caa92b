"""The physical plan: a tree of operators over Arrow tables. Pure.

    SourceScan → Map, Filter, Project → PartialHashAggregate → ShuffleWrite
                                                              │   (a stage ends here)
                                                         ShuffleRead → FinalHashAggregate → PlanSink

An operator names its input operators and what it does, and nothing else. Columns and aggregates are
given by name; `kernels` computes them. Two operators are the same only if they are one object: a
part of a plan that is used twice is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from headrace.errors import UsageError
from headrace.plan.aggregates import Aggregate

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]

PARTITIONS_MAX = 4096
"""Of one shuffle. A map task writes a file for each partition that has rows."""


class ScanUnit(Protocol):
    """A part of a source that one task reads. It travels to the task by cloudpickle."""

    @property
    def name(self) -> str:
        """Identifies the rows: the same rows have the same name in every application."""

    def read(self) -> pa.Table: ...


class ScanSource(Protocol):
    """Where rows come from."""

    @property
    def schema(self) -> pa.Schema | None:
        """The columns; None if they are known only when the rows are read."""

    def units(self) -> Sequence[ScanUnit]: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class DescribedSource:
    """What a task knows of a source: its columns and its name, and none of its rows."""

    schema: pa.Schema | None
    label: str

    def units(self) -> Sequence[ScanUnit]:
        raise UsageError(f"{self.label} has no units in a task", do="plan where the source is")

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, eq=False)
class SourceScan:
    """Reads the units of a source, one in each task. Its source stays where it was planned."""

    source: ScanSource

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceScan, (DescribedSource(self.source.schema, str(self.source)),)

    def __str__(self) -> str:
        return f"Scan({self.source})"


@dataclass(frozen=True, eq=False)
class Map:
    """Applies a function to each record batch."""

    input: Operator
    function: Callable[..., Any]
    schema: pa.Schema | None = None
    """The columns that the function returns, if they are declared."""
    version: str = ""
    """Identifies what the function does, in place of its source."""

    def __str__(self) -> str:
        return f"Map({function_name(self.function)})"


@dataclass(frozen=True, eq=False)
class Filter:
    """Keeps the rows for which the function of a record batch returns true."""

    input: Operator
    function: Callable[..., Any]
    version: str = ""

    def __str__(self) -> str:
        return f"Filter({function_name(self.function)})"


@dataclass(frozen=True, eq=False)
class Project:
    """Keeps columns, in this order."""

    input: Operator
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"Project({', '.join(self.columns)})"


@dataclass(frozen=True, eq=False)
class PartialHashAggregate:
    """Aggregates the rows of one task by key, so that fewer rows are shuffled."""

    input: Operator
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def __str__(self) -> str:
        return f"PartialHashAggregate({_described(self.keys, self.aggregates)})"


@dataclass(frozen=True, eq=False)
class FinalHashAggregate:
    """Combines what partial aggregates made of the same key."""

    input: Operator
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def __str__(self) -> str:
        return f"FinalHashAggregate({_described(self.keys, self.aggregates)})"


@dataclass(frozen=True, eq=False)
class Distinct:
    """Keeps one row for each key: the first that it gets."""

    input: Operator
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"Distinct({', '.join(self.keys)})"


@dataclass(frozen=True, eq=False)
class ShuffleWrite:
    """Divides rows by the hash of their key, and ends its stage."""

    input: Operator
    keys: tuple[str, ...]
    partitions: int

    def __post_init__(self) -> None:
        given = self.partitions
        if type(given) is not int or not 1 <= given <= PARTITIONS_MAX:
            raise UsageError(
                f"{self}: partitions must be from 1 to {PARTITIONS_MAX}, got {given!r}",
                do="give another number of partitions",
            )

    def __str__(self) -> str:
        return f"ShuffleWrite({', '.join(self.keys) or 'all rows'}; {self.partitions} partitions)"


@dataclass(frozen=True, eq=False)
class ShuffleRead:
    """Reads one partition of a shuffle, and begins its stage."""

    input: ShuffleWrite

    def __str__(self) -> str:
        return f"ShuffleRead({self.input.partitions} partitions)"


@dataclass(frozen=True, eq=False)
class HashJoin:
    """Joins the rows of two shuffles that have equal keys. Null equals nothing."""

    left: ShuffleRead
    right: ShuffleRead
    on: tuple[str, ...]
    kind: JoinKind = "inner"

    def __str__(self) -> str:
        return f"HashJoin({self.kind}, on {', '.join(self.on)})"


@dataclass(frozen=True, eq=False)
class PlanSink:
    """Hands the rows of each task to a sink. It is the root of a plan."""

    input: Operator
    sink: Any
    version: str = ""
    """Identifies what the sink does, in place of its source."""

    def __str__(self) -> str:
        return f"Sink({getattr(self.sink, '__name__', self.sink)})"


Operator = (
    SourceScan
    | Map
    | Filter
    | Project
    | PartialHashAggregate
    | ShuffleWrite
    | ShuffleRead
    | FinalHashAggregate
    | Distinct
    | HashJoin
    | PlanSink
)


def inputs(operator: Operator) -> tuple[Operator, ...]:
    """Return the operators that this one reads, in their order."""
    match operator:
        case SourceScan():
            return ()
        case HashJoin(left=left, right=right):
            return left, right
    return (operator.input,)


def function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "") or type(function).__name__


def _described(keys: Sequence[str], aggregates: Sequence[Aggregate]) -> str:
    return f"{', '.join(keys) or 'all rows'}: {', '.join(map(str, aggregates))}"
