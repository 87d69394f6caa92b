"""Reads anything with the Arrow PyCapsule interface as batches of a bounded size.

pandas, Polars, DuckDB, Spark's `toArrow` and PyArrow's own readers have that interface. This module
reads their batches one by one, so a stream need not fit into memory.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headrace.errors import DocumentError
from headrace.settings import MIB

PIECE_BYTES = 16 * MIB
_PIECE_DOCUMENTS = 65_536


@runtime_checkable
class ArrowStream(Protocol):
    """Batches of one schema."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """One batch."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


def is_streamed(given: object) -> bool:
    """Return True if documents are read piece by piece, as large PyArrow tables are."""
    if isinstance(given, pa.RecordBatch):
        return False
    if isinstance(given, pa.Table):
        return bool(given.nbytes > PIECE_BYTES)
    return isinstance(given, ArrowStream | ArrowArray)


def read_pieces(
    given: ArrowStream | ArrowArray, fields: Container[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the documents, without the index of a pandas DataFrame.

    Raises DocumentError if the index has the name of one of `fields`.
    """
    batches, index = _open(given), None
    for batch in batches:
        if index is None:
            index = [] if isinstance(given, pa.Table) else _index_columns(batch.schema, fields)
        if index:
            batch = batch.drop_columns(index)
        rows = max(1, min(_PIECE_DOCUMENTS, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _open(given: Any) -> Iterator[pa.RecordBatch]:
    try:
        if isinstance(given, pa.Table):
            return iter(given.to_reader())
        if isinstance(given, ArrowStream):
            return iter(pa.RecordBatchReader.from_stream(given))
        return iter([pa.record_batch(given)])
    except (pa.ArrowException, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        raise DocumentError(
            f"the {type(given).__name__} cannot be read as Arrow columns: {why}",
            do="give a table with a column for each field",
        ) from error


def _index_columns(schema: pa.Schema, fields: Container[str]) -> list[str]:
    """Return the columns that pandas adds for the index of a DataFrame."""
    stored = (schema.metadata or {}).get(b"pandas")
    columns = json.loads(stored).get("index_columns", []) if stored else []
    # pandas describes a range index by a dict, and stores no column for it.
    names: list[Any] = [each.get("name") if isinstance(each, dict) else each for each in columns]
    for name in names:
        if name in fields:
            raise DocumentError(
                f"index {name!r} of the DataFrame has the name of a field",
                do="make it a column with reset_index(), or rename it",
            )
    return [name for name in names if name in schema.names]
