"""Writes lines of JSON to a store."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from headrace.cli.line_chunks import Readable, chunks
from headrace.errors import DocumentError, QueueFullError
from headrace.settings import MIB
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.store_directory import TIMESERIES, StoreSettings, vector_schema
from headrace.stores.timeseries.input.arrow_samples import batch_rows
from headrace.stores.timeseries.input.sample_documents import read_ndjson
from headrace.stores.vectors.vector_documents import document_rows

LINE_BYTES_MAX = 16 * MIB
_CHUNK_BYTES = 1 * MIB

ReadRows = Callable[[bytes], pa.RecordBatch]


def write_lines(store: SharedStore, file: Readable) -> int:
    """Store the rows of a file, and return how many there are. They are durable then.

    A line that is wrong raises DocumentError, and the lines in front of its piece are stored.
    """
    read = sample_rows if store.kind == TIMESERIES else vector_reader(store.settings)
    count = 0
    for chunk in chunks(file, LINE_BYTES_MAX, _CHUNK_BYTES):
        try:
            rows = read(chunk.data)
            _write(store, rows)
        except DocumentError as error:
            store.flush()
            stored = f"{count} rows before it are stored; " if count else ""
            what = _with_line(error.what, chunk.lines_before)
            raise DocumentError(what, do=stored + error.do) from error
        count += rows.num_rows
    store.flush()
    return count


def _with_line(what: str, lines_before: int) -> str:
    """Return what is wrong, with the number of the line in the file."""
    if found := re.match(r"line (\d+)", what):
        return f"line {lines_before + int(found[1])}{what[found.end() :]}"
    return f"after line {lines_before}: {what}" if lines_before else what


def _write(store: SharedStore, rows: pa.RecordBatch) -> None:
    try:
        store.write(rows)
    except QueueFullError:
        # What waits is stored now, and makes room.
        store.flush()
        store.write(rows)


def sample_rows(lines: bytes) -> pa.RecordBatch:
    """Return samples as rows of a time-series store."""
    return batch_rows(read_ndjson(lines))


def vector_reader(settings: StoreSettings) -> ReadRows:
    """Return what makes rows of a vector store of lines."""
    schema = vector_schema(settings)
    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def read(lines: bytes) -> pa.RecordBatch:
        documents = []
        for number, line in enumerate(lines.split(b"\n"), 1):
            if line.strip():
                try:
                    documents.append(decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise DocumentError(
                        f"line {number} cannot be read: {error}",
                        do='write it like {"id": "a", "vector": [0.1, 0.2]}',
                    ) from error
        return document_rows(schema, documents)

    return read
