"""Rows that are not flushed yet: the last one of each id counts. Pure."""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

from headrace.stores.vectors.vector_rows import VectorRows, VectorSchema, no_columns


class VectorDelta:
    """Rows in the order in which they were written, and records to store together with them."""

    def __init__(
        self,
        schema: VectorSchema,
        rows: VectorRows | None = None,
        records: dict[bytes, bytes] | None = None,
    ) -> None:
        self.schema = schema
        self.records = records or {}
        """Keys and values that are put in the same atomic write: checkpoints of tasks."""
        self._parts = [rows] if rows is not None and len(rows) else []
        self.size_bytes = sum(rows.size_bytes for rows in self._parts) + 100 * len(self.records)

    @property
    def is_empty(self) -> bool:
        return not self._parts and not self.records

    def merge(self, other: Self) -> None:
        self._parts += other._parts
        self.records |= other.records
        self.size_bytes += other.size_bytes

    def copy(self) -> VectorDelta:
        copied = VectorDelta(self.schema, records=dict(self.records))
        copied._parts = list(self._parts)
        copied.size_bytes = self.size_bytes
        return copied

    def rows(self) -> VectorRows:
        """Return the last row of each id."""
        return latest_rows(self.schema, self._parts)


def latest_rows(schema: VectorSchema, parts: list[VectorRows]) -> VectorRows:
    """Return the last row of each id in parts that were written in this order."""
    if not parts:
        parts = [_no_rows(schema)]
    names = np.concatenate([each.names for each in parts])
    joined = parts[0]
    if len(parts) > 1:
        joined = VectorRows(
            names,
            np.concatenate([each.vectors for each in parts]),
            _joined_metadata([each.metadata for each in parts], len(names)),
            np.concatenate([each.deleted for each in parts]),
        )
    last = dict(zip(names.tolist(), range(len(names)), strict=True))
    return joined.take(np.sort(np.fromiter(last.values(), np.int64, len(last))))


def _joined_metadata(parts: list[pa.RecordBatch], count: int) -> pa.RecordBatch:
    if not len(parts[0].schema):
        return no_columns(count)
    return pa.concat_batches(parts)


def _no_rows(schema: VectorSchema) -> VectorRows:
    names, vectors = np.empty(0, object), np.empty((0, schema.dimension), np.float32)
    columns = schema.metadata_columns
    metadata = pa.RecordBatch.from_pylist([], schema=columns) if len(columns) else no_columns(0)
    return VectorRows(names, vectors, metadata, np.empty(0, np.bool_))
