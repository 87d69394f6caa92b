"""Rows as bytes, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from headrace.errors import DocumentError
from headrace.settings import MIB

CHUNK_BYTES = 8 * MIB
"""Rows travel in pieces of about this size."""


def encode_rows(rows: pa.RecordBatch) -> pa.Buffer:
    """Return rows with their schema, in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue()


def decode_rows(body: object) -> pa.RecordBatch:
    """Return the rows that `encode_rows` encoded. Raises DocumentError if the bytes are no rows."""
    try:
        with pa.ipc.open_stream(body) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DocumentError(
            f"the rows cannot be read: {error}", do="send one Arrow stream of rows"
        ) from error
    return one_batch(table.schema, table.to_batches())


def one_batch(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Return all rows as one batch."""
    given = [each for each in batches if each.num_rows]
    if len(given) == 1:
        return given[0]
    return pa.concat_batches(given) if given else pa.RecordBatch.from_pylist([], schema)


def split_rows(rows: pa.RecordBatch, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows in slices of about `chunk_bytes`; one empty slice if there are none."""
    count = max(1, min(rows.num_rows, rows.num_rows * chunk_bytes // max(1, rows.nbytes)))
    for first in range(0, max(1, rows.num_rows), count):
        yield rows.slice(first, count)
