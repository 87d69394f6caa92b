"""Filters of metadata: which rows a search may return. Pure.

A filter is evaluated over whole columns before the search, so the search scores nothing else.
A value that is missing fits no `Equals`, `OneOf` or `Between`, and so it fits their `Negation`;
`Equals(field, None)` asks for missing values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import QueryError

Mask = npt.NDArray[np.bool_]
Value = str | int | float | bool | None

DEPTH_MAX = 32
VALUES_MAX = 100_000


class FilterColumn(Protocol):
    """One metadata column of all rows."""

    @property
    def missing(self) -> Mask:
        """True where the value is null."""

    def check(self, value: Value) -> None:
        """Raise QueryError if values of the column cannot be compared with this one."""

    def equal(self, values: Sequence[Value]) -> Mask:
        """True where the value is one of these, none of which is None."""

    def compare(self, value: Value, holds: Callable[[Any, Any], Any]) -> Mask:
        """True where `holds(value of the row, value)`; what a missing value gives is ignored."""


class FilterColumns(Protocol):
    """All metadata columns of a snapshot."""

    @property
    def row_count(self) -> int: ...

    def column(self, field: str) -> FilterColumn:
        """Raises QueryError if there is no such column."""


@dataclass(frozen=True, slots=True)
class Equals:
    """The value of a field is this one; None stands for a missing value."""

    field: str
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """The value of a field is one of these."""

    field: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """The value of a field lies between bounds. A bound that is None does not count."""

    field: str
    at_least: Value = None
    above: Value = None
    at_most: Value = None
    below: Value = None


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every filter keeps the row. No filter at all keeps every row."""

    filters: tuple[MetadataFilter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one filter keeps the row."""

    filters: tuple[MetadataFilter, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """The filter does not keep the row."""

    filter: MetadataFilter


MetadataFilter = Equals | OneOf | Between | AllOf | AnyOf | Negation

_BOUNDS: Mapping[str, str] = {"ge": "at_least", "gt": "above", "le": "at_most", "lt": "below"}
_FORMS = (
    '{"field": f, "eq": v}, {"field": f, "in": [v, ...]}, {"field": f, "ge": v, "lt": v}, '
    '{"and": [...]}, {"or": [...]} or {"not": {...}}'
)


def evaluate(kept: MetadataFilter, columns: FilterColumns) -> Mask:
    """Return which rows the filter keeps. Raises QueryError if it does not fit the columns."""
    match kept:
        case Equals(field, None):
            return columns.column(field).missing
        case Equals(field, value):
            return _one_of(columns.column(field), (value,))
        case OneOf(field, values):
            return _one_of(columns.column(field), values)
        case Between(field):
            return _between(columns.column(field), kept)
        case AllOf(filters):
            every = np.ones(columns.row_count, np.bool_)
            return reduce(np.logical_and, (evaluate(each, columns) for each in filters), every)
        case AnyOf(filters):
            none = np.zeros(columns.row_count, np.bool_)
            return reduce(np.logical_or, (evaluate(each, columns) for each in filters), none)
        case Negation(inner):
            return np.logical_not(evaluate(inner, columns))


def _one_of(column: FilterColumn, values: Sequence[Value]) -> Mask:
    given = [value for value in values if value is not None]
    for value in given:
        column.check(value)
    found = column.equal(given) & ~column.missing
    return found | column.missing if len(given) < len(values) else found


def _between(column: FilterColumn, kept: Between) -> Mask:
    bounds = (
        (kept.at_least, np.greater_equal),
        (kept.above, np.greater),
        (kept.at_most, np.less_equal),
        (kept.below, np.less),
    )
    found = ~column.missing
    for bound, holds in bounds:
        if bound is not None:
            column.check(bound)
            found &= column.compare(bound, holds)
    return found


def to_json(kept: MetadataFilter) -> dict[str, Any]:
    """Return the filter as `from_json` reads it."""
    match kept:
        case Equals(field, value):
            return {"field": field, "eq": value}
        case OneOf(field, values):
            return {"field": field, "in": list(values)}
        case Between(field):
            bounds = {word: getattr(kept, name) for word, name in _BOUNDS.items()}
            return {"field": field, **{k: v for k, v in bounds.items() if v is not None}}
        case AllOf(filters):
            return {"and": [to_json(each) for each in filters]}
        case AnyOf(filters):
            return {"or": [to_json(each) for each in filters]}
        case Negation(inner):
            return {"not": to_json(inner)}


def from_json(given: object, depth: int = 0) -> MetadataFilter:
    """Read a filter. Raises QueryError that names what is wrong with it."""
    if depth > DEPTH_MAX:
        raise QueryError(f"a filter is nested more than {DEPTH_MAX} deep", do="simplify it")
    if not isinstance(given, dict):
        raise _unreadable(given)
    if "field" in given:
        return _from_field(given)
    if len(given) != 1:
        raise _unreadable(given)
    ((word, inner),) = given.items()
    if word == "not":
        return Negation(from_json(inner, depth + 1))
    if word in ("and", "or") and isinstance(inner, list):
        filters = tuple(from_json(each, depth + 1) for each in inner)
        return AllOf(filters) if word == "and" else AnyOf(filters)
    raise _unreadable(given)


def _from_field(given: dict[str, Any]) -> MetadataFilter:
    field = given["field"]
    words = given.keys() - {"field"}
    if not isinstance(field, str):
        raise _unreadable(given)
    if words == {"eq"}:
        return Equals(field, _value(given["eq"], field))
    if words == {"in"} and isinstance(given["in"], list):
        if len(given["in"]) > VALUES_MAX:
            raise QueryError(
                f"the filter of {field!r} names {len(given['in'])} values",
                do=f"name at most {VALUES_MAX}",
            )
        return OneOf(field, tuple(_value(each, field) for each in given["in"]))
    if words and words <= _BOUNDS.keys():
        bounds = {_BOUNDS[word]: _value(given[word], field) for word in words}
        if None not in bounds.values():
            return Between(field, **bounds)
    raise _unreadable(given)


def _value(given: object, field: str) -> Value:
    if isinstance(given, float) and math.isnan(given):
        raise QueryError(f"the filter of {field!r} compares with NaN", do="leave it out")
    if given is None or isinstance(given, str | int | float):
        return given
    raise QueryError(
        f"the filter of {field!r} compares with {str(given)[:100]!r}",
        do="compare with a string, a number, a truth value or null",
    )


def _unreadable(given: object) -> QueryError:
    return QueryError(f"cannot read the filter {str(given)[:200]}", do=f"write {_FORMS}")
