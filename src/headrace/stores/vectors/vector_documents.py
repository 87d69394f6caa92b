"""Rows of a vector store as documents, the way JSON has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headrace.errors import DocumentError
from headrace.stores.vectors.vector_rows import DELETED, ID, VECTOR, VectorSchema, refused

_FAILURES = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError)


def document_rows(schema: VectorSchema, documents: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return documents as columns. Raises DocumentError that names row and column."""
    types: dict[str, pa.DataType] = {
        ID: pa.string(),
        VECTOR: pa.list_(pa.float32()),
        DELETED: pa.bool_(),
        **{each.name: each.type for each in schema.metadata_columns},
    }
    given: dict[str, None] = {ID: None}
    for row, document in enumerate(documents):
        for name in document:
            if name not in types:
                known = ", ".join(schema.columns.names)
                raise refused(row, name, f"the store has no such column, only {known}")
            given[name] = None
    columns = [_column(name, types[name], documents) for name in given]
    return pa.RecordBatch.from_arrays(columns, names=list(given))


def _column(name: str, kind: pa.DataType, documents: Sequence[dict[str, Any]]) -> pa.Array:
    values = [each.get(name) for each in documents]
    try:
        return value_array(values, kind)
    except _FAILURES as error:
        raise refused(_first_bad(values, kind), name, _reason(error)) from error


def value_array(values: Iterable[Any], kind: pa.DataType | None) -> pa.Array:
    """Return Python values as a column. A time may be a string; without a zone it is UTC."""
    if kind is not None and pa.types.is_timestamp(kind):
        values = [_moment(each) for each in values]
    return pa.array(values, kind)


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def named_array(name: str, values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as a column; errors say which column it is."""
    try:
        return value_array(values, kind)
    except _FAILURES as error:
        raise DocumentError(
            f"the column {name!r} cannot be stored: {_reason(error)}",
            do=f"give values of type {kind}" if kind else "give a list of numbers for each row",
        ) from error


def _first_bad(values: Sequence[Any], kind: pa.DataType) -> int:
    for row, value in enumerate(values):
        try:
            value_array([value], kind)
        except _FAILURES:
            return row
    return 0


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
