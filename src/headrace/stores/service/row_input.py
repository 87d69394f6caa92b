"""Rows as callers have them, as one record batch that a store takes or refuses whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import DocumentError
from headrace.journal.documents.arrow_stream import ArrowArray, ArrowStream, read_pieces

Documents: TypeAlias = Sequence[Mapping[str, Any]]
RowsLike: TypeAlias = pa.RecordBatch | ArrowStream | ArrowArray | Documents
"""A record batch, a table, a DataFrame of pandas or Polars, or a list of dicts."""


def one_batch(
    rows: RowsLike, columns: pa.Schema, from_documents: Callable[[Documents], pa.RecordBatch]
) -> pa.RecordBatch:
    """Return the rows; `columns` are what none at all have. Raises DocumentError."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, ArrowStream | ArrowArray):
        pieces = list(read_pieces(rows))
        return pa.concat_batches(pieces or [pa.RecordBatch.from_pylist([], schema=columns)])
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return from_documents(rows)
    raise DocumentError(
        f"a {type(rows).__name__} cannot be written as rows",
        do="give a record batch, a table, a DataFrame or a list of dicts",
    )
