"""The rows of a reduce partition as the bytes of a part file: an Arrow IPC stream. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from headrace.exchange.format.layout import INDEX_BIN, MapTaskIndex, ShufflePartitionMeta, damaged
from headrace.exchange.format.publication import checksum
from headrace.settings import KIB

Compression = Literal["lz4", "zstd"]


_SAMPLE_BYTES = 64 * KIB
_SAVED_MIN = 1 / 3
"""To compress takes longer than to write and to read the bytes that it saves, if it saves less."""


class PartCompression:
    """Compresses the parts of one output, unless that saves too little.

    The first rows decide: rows that are computed again are the same bytes again.
    """

    def __init__(self, codec: Compression | None) -> None:
        self._codec = codec
        self._options: pa.ipc.IpcWriteOptions | None = None

    def options(self, rows: pa.RecordBatch) -> pa.ipc.IpcWriteOptions:
        """Return how to encode all parts, of which `rows` are the first to be encoded."""
        if self._options is None:
            self._options = pa.ipc.IpcWriteOptions(compression=self._chosen(rows))
        return self._options

    def _chosen(self, rows: pa.RecordBatch) -> Compression | None:
        sample = rows.slice(0, max(1, rows.num_rows * _SAMPLE_BYTES // max(1, rows.nbytes)))
        compressed = _encoded_bytes(sample, self._codec)
        is_worth_it = compressed <= (1 - _SAVED_MIN) * _encoded_bytes(sample, None)
        return self._codec if is_worth_it else None


def _encoded_bytes(rows: pa.RecordBatch, codec: Compression | None) -> int:
    sink = pa.MockOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    return int(sink.size())


@dataclass(slots=True)
class PartEncoder:
    """The rows of one reduce partition: encoded ones, and those that wait for more."""

    schema: pa.Schema
    compression: PartCompression
    rows: int = 0
    batches: int = 0
    waiting_bytes: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _sink: pa.BufferOutputStream = field(default_factory=pa.BufferOutputStream)
    _stream: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> int:
        """Take rows, and return their size."""
        size = int(batch.nbytes)
        self._waiting.append(batch)
        self.waiting_bytes += size
        return size

    def encode(self) -> int:
        """Encode the rows that wait, and return their size."""
        size, self.waiting_bytes = self.waiting_bytes, 0
        if self._waiting:
            for batch in _combined(self._waiting):
                if self._stream is None:
                    options = self.compression.options(batch)
                    self._stream = pa.ipc.new_stream(self._sink, self.schema, options=options)
                self._stream.write_batch(batch)
                self.rows += batch.num_rows
                self.batches += 1
            self._waiting.clear()
        return size

    def finish(self) -> pa.Buffer:
        self.encode()
        assert self._stream is not None
        self._stream.close()
        return self._sink.getvalue()


def _combined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    else:
        # Yields one batch, unless a column has more characters than one batch can hold.
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def decode_part(data: bytes | bytearray, meta: ShufflePartitionMeta, file: str) -> pa.Table:
    """Return the rows of a part file. Raises DamagedOutputError unless it is what was written."""
    if len(data) != meta.bytes:
        raise damaged(file, f"it has {len(data)} bytes, its index says {meta.bytes}")
    if meta.checksum and checksum(memoryview(data)) != meta.checksum:
        raise damaged(file, "its checksum does not match")
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            table = stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise damaged(file, str(error)) from error
    if table.num_rows != meta.rows:
        raise damaged(file, f"it has {table.num_rows} rows, its index says {meta.rows}")
    return table


def empty_table(index: MapTaskIndex) -> pa.Table:
    """Return the table of a partition without rows: its columns are known if the index has them."""
    return output_schema(index).empty_table()


def output_schema(index: MapTaskIndex) -> pa.Schema:
    if not index.schema:
        return pa.schema([])
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(index.schema, validate=True)))
    except (pa.ArrowException, OSError, binascii.Error) as error:
        file = index.task.file(index.attempt, INDEX_BIN)
        raise damaged(file, f"its schema cannot be read: {error}") from error


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()
