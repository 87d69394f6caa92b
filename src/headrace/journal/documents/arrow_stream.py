"""Whatever has the Arrow PyCapsule interface, as batches of a bounded size.

pandas, Polars, DuckDB, Spark's `toArrow` and PyArrow's own readers have it. What they give is read
as it is needed: a stream that does not fit into memory is never there as a whole.
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
    """Whether documents are read piece by piece. PyArrow's tables are, if they are large."""
    if isinstance(given, pa.RecordBatch):
        return False
    if isinstance(given, pa.Table):
        return bool(given.nbytes > PIECE_BYTES)
    return isinstance(given, ArrowStream | ArrowArray)


def read_pieces(
    given: ArrowStream | ArrowArray, fields: Container[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Its documents, without the index of a pandas DataFrame; that must not be one of `fields`."""
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
    """Those that pandas adds for the index of a DataFrame."""
    stored = (schema.metadata or {}).get(b"pandas")
    columns = json.loads(stored).get("index_columns", []) if stored else []
    # An index that is a range is no column, and described by a dict.
    names: list[Any] = [each.get("name") if isinstance(each, dict) else each for each in columns]
    for name in names:
        if name in fields:
            raise DocumentError(
                f"index {name!r} of the DataFrame has the name of a field",
                do="make it a column with reset_index(), or rename it",
            )
    return [name for name in names if name in schema.names]
