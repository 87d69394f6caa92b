"""Filters that partition labels decide: of the journals that cannot match none is opened.

Spark applies every filter itself all the same. So a filter that is not understood costs nothing but
time, and what is narrowed must only never lose a row.
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

    Spark refuses a reader that overrides `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, as it is by default, instead of not calling
    it. It tells so by the method's `__func__`. A callable that shows the one of the base class is
    taken for a reader without, and is called where filters are pushed.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.taken: list[Filter] = []

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self.taken = list(filters)
        return filters


def label_selectors(filters: Sequence[Filter], source: Source) -> list[Selector]:
    """Each must match a journal, or no document in it passes all filters."""
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
    """The column, and the values of which it must have one; no column if that is not all."""
    match filter:
        case EqualTo((column,), value) if value is not None:
            return column, (value,)
        case EqualNullSafe((column,), value):
            return column, (value,)
        case IsNull((column,)):
            return column, (None,)
        case In((column,), values):
            # Nothing equals null.
            return column, tuple(value for value in values if value is not None)
    return "", ()


def _is_of(kind: pa.DataType, value: object) -> bool:
    """Whether it is a value of that type, so that the label of an equal one is its label."""
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
