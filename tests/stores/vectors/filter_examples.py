"""Metadata to filter, random filters of it, and which rows they keep, said in plain Python."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from headrace.stores.vectors.filters import (
    AllOf,
    AnyOf,
    Between,
    Equals,
    MetadataFilter,
    Negation,
    OneOf,
)
from headrace.stores.vectors.metadata_columns import MetadataColumn, MetadataView

SCHEMA = pa.schema(
    [
        pa.field("color", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("sold", pa.bool_()),
        pa.field("made", pa.timestamp("us", "UTC")),
    ]
)

TEXTS = st.sampled_from(["", "a", "b", "red", "Red", "rouge", "é", "z" * 40])
INTEGERS = st.sampled_from([-(2**63), -5, -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1])
NUMBERS = st.sampled_from([-1e300, -1.5, -0.0, 0.0, 0.5, 1.0, 2.0, 1e300, float("inf")])
TIMES = st.sampled_from(["1960-01-01T00:00:00Z", "2030-01-31T12:00:00Z", "2030-01-31T12:00:00.5Z"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "color": TEXTS,
    "size": INTEGERS,
    "price": NUMBERS,
    "sold": st.booleans(),
    "made": TIMES,
}
ASKED: dict[str, st.SearchStrategy[Any]] = {
    **VALUES,
    "size": INTEGERS | NUMBERS | st.sampled_from([2**70, -(2**70)]),
    "price": NUMBERS | st.sampled_from([-5, 0, 1, 2]),
}


def rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    fields = {name: st.none() | values for name, values in VALUES.items()}
    return st.lists(st.fixed_dictionaries(fields), max_size=30)


@st.composite
def fits(draw: st.DrawFn) -> MetadataFilter:
    field = draw(st.sampled_from(SCHEMA.names))
    values = ASKED[field]
    match draw(st.integers(0, 2)):
        case 0:
            return Equals(field, draw(st.none() | values))
        case 1:
            return OneOf(field, tuple(draw(st.lists(st.none() | values, max_size=12))))
    bounds = draw(
        st.dictionaries(st.sampled_from(["at_least", "above", "at_most", "below"]), values)
    )
    return Between(field, **bounds)


def filters() -> st.SearchStrategy[MetadataFilter]:
    def combined(inner: st.SearchStrategy[MetadataFilter]) -> st.SearchStrategy[MetadataFilter]:
        several = st.lists(inner, max_size=3).map(tuple)
        return several.map(AllOf) | several.map(AnyOf) | inner.map(Negation)

    return st.recursive(fits(), combined, max_leaves=6)


def keeps(kept: MetadataFilter, row: dict[str, Any]) -> bool:
    """Say whether the filter keeps the row, by its definition."""
    match kept:
        case Equals(field, value):
            return _same(row[field], value, field)
        case OneOf(field, values):
            return any(_same(row[field], value, field) for value in values)
        case Between(field, at_least, above, at_most, below):
            value = _plain(row[field], field)
            if value is None:
                return False
            return (
                (at_least is None or value >= _plain(at_least, field))
                and (above is None or value > _plain(above, field))
                and (at_most is None or value <= _plain(at_most, field))
                and (below is None or value < _plain(below, field))
            )
        case AllOf(inner):
            return all(keeps(each, row) for each in inner)
        case AnyOf(inner):
            return any(keeps(each, row) for each in inner)
        case Negation(each):
            return not keeps(each, row)


def _same(value: Any, wanted: Any, field: str) -> bool:
    return bool(_plain(value, field) == _plain(wanted, field))


def _plain(value: Any, field: str) -> Any:
    return datetime.fromisoformat(value) if field == "made" and value is not None else value


def record_batch(given: list[dict[str, Any]]) -> pa.RecordBatch:
    typed = [{**row, "made": _plain(row["made"], "made")} for row in given]
    return pa.RecordBatch.from_pylist(typed, schema=SCHEMA)


def view_of(given: list[dict[str, Any]], split: int = 0) -> MetadataView:
    """Return the rows as columns that got the first `split` of them earlier."""
    batch = record_batch(given)
    columns = {}
    for field in SCHEMA:
        column = MetadataColumn(field)
        column.append(0, batch.column(field.name)[:split])
        column.append(split, batch.column(field.name)[split:])
        columns[field.name] = column.view(len(given))
    return MetadataView(len(given), columns)
