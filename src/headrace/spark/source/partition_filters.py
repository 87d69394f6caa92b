"""Filters on partition columns: a batch read opens no journal that cannot match.

Spark applies every filter itself as well. So a filter that this module does not understand costs
time and nothing else. But a journal that has a matching row must never be left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    IsNull,
)

from headrace.journal.names import Selector, escape_value
from headrace.shuffle.binding import Source, document_schema


class FilterTaker:
    """A reader's `pushFilters`: keeps the filters, and leaves all of them to Spark.

    While `spark.sql.python.filterPushdown.enabled` is false, which is the default, Spark refuses a
    reader that overrides `pushFilters`. It recognizes one by the method's `__func__`. This callable
    has the `__func__` of the base class, so Spark accepts it, and still calls it with filters.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.taken: list[Filter] = []

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self.taken = list(filters)
        return filters


def label_selectors(filters: Sequence[Filter], source: Source) -> list[Selector]:
    """Return selectors. A journal that one of them does not match has no row that passes."""
    schema = document_schema(source)
    found = []
    for each in filters:
        column, values = _wanted(each)
        if column in source.partition_by:
            kind = schema.field(column).type
            if all(_is_of(kind, value) for value in values):
                labels = tuple(map(escape_value, values))
                found.append(Selector(source.collection, {column: labels}))
    return found


def _wanted(filter: Filter) -> tuple[str, tuple[object, ...]]:
    """Return the column and its possible values; no column if the filter says something else."""
    match filter:
        case EqualTo((column,), value) if value is not None:
            return column, (value,)
        case EqualNullSafe((column,), value):
            return column, (value,)
        case IsNull((column,)):
            return column, (None,)
        case In((column,), values):
            # No value equals null.
            return column, tuple(value for value in values if value is not None)
    return "", ()


def _is_of(kind: pa.DataType, value: object) -> bool:
    """Return True if the value has the type: only then do equal values have equal labels."""
    match value:
        case None:
            return True
        case bool():
            return bool(pt.is_boolean(kind))
        case int():
            return bool(pt.is_integer(kind))
        case str():
            return bool(pt.is_string(kind))
        case datetime():
            return False
        case date():
            return bool(pt.is_date(kind))
    return False
