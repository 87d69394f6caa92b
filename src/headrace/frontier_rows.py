"""The rows of a frontier as numpy columns, and as bytes in Arrow's format."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headrace.arrow_numbers import arrow_numbers, numpy_numbers
from headrace.errors import DataError, VersionError

TAG_BITS = 32
TAG_MAX = (1 << TAG_BITS) - 1

# One integer per place keeps every search and sort of places on a single column.
JOURNAL_ROW = np.dtype([("place", np.uint64), ("through", np.int64)])
PRODUCER_ROW = np.dtype(
    [
        ("place", np.uint64),
        ("producer", np.uint64),
        ("last_commit", np.uint64),
        ("span", np.int64),
    ]
)

_FORMAT = b"1"
_DIGEST_BYTES = 8
_PRODUCERS = pa.list_(
    pa.struct([("producer", pa.uint64()), ("last_commit", pa.uint64()), ("span", pa.int64())])
)
_SCHEMA = pa.schema(
    [
        ("journal", pa.uint32()),
        ("binding", pa.uint32()),
        ("through", pa.int64()),
        ("producers", _PRODUCERS),
    ],
    metadata={b"headrace.frontier": _FORMAT},
)

Rows = NDArray[np.void]
_NO_ROWS = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in _SCHEMA], schema=_SCHEMA)


def encode_rows(journals: Rows, producers: Rows) -> bytes:
    """Return compact bytes, equal for equal rows. Both tables are sorted by place."""
    place_ends = np.searchsorted(producers["place"], journals["place"], side="right")
    nested = pa.StructArray.from_arrays(
        [arrow_numbers(producers[name]) for name in ("producer", "last_commit", "span")],
        fields=list(_PRODUCERS.value_type),
    )
    batch = pa.record_batch(
        [
            arrow_numbers((journals["place"] >> TAG_BITS).astype(np.uint32)),
            arrow_numbers((journals["place"] & TAG_MAX).astype(np.uint32)),
            arrow_numbers(journals["through"]),
            pa.ListArray.from_arrays(arrow_numbers(np.r_[0, place_ends].astype(np.int32)), nested),
        ],
        schema=_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, _SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return bytes(xxhash.xxh3_64_digest(payload)) + payload


def decode_rows(data: bytes) -> tuple[Rows, Rows]:
    """Return the rows that `encode_rows` made into `data`.

    Raises DataError if the bytes are damaged, and VersionError if they have a newer format.
    """
    payload = memoryview(data)[_DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(payload) != data[:_DIGEST_BYTES]:
        raise damaged(f"the checksum of its {len(data)} bytes is wrong")
    return _rows_of(_read_batch(payload))


def _read_batch(payload: memoryview) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(payload) as reader:
            found = (reader.schema.metadata or {}).get(b"headrace.frontier")
            if found is None:
                raise damaged("it is not a frontier")
            if found != _FORMAT:
                raise VersionError(
                    f"a frontier has format {found.decode(errors='replace')}, "
                    f"this Headrace reads {_FORMAT.decode()}",
                    do="use the Headrace that wrote it, or a newer one",
                )
            if reader.schema != _SCHEMA:
                raise damaged(f"its columns are {reader.schema.names}")
            table = reader.read_all()
        table.validate(full=True)
        (batch,) = table.combine_chunks().to_batches() or [_NO_ROWS]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(f"its Arrow data cannot be read ({error})") from error
    return batch


def _rows_of(batch: pa.RecordBatch) -> tuple[Rows, Rows]:
    nested = batch["producers"]
    inner = nested.flatten()
    columns = {name: batch[name] for name in ("journal", "binding", "through")}
    columns |= {name: inner.field(name) for name in ("producer", "last_commit", "span")}
    if nested.null_count or inner.null_count or any(c.null_count for c in columns.values()):
        raise damaged("it has nulls")
    journals = np.zeros(len(batch), JOURNAL_ROW)
    journals["place"] = numpy_numbers(columns["journal"]).astype(np.uint64) << TAG_BITS
    journals["place"] |= numpy_numbers(columns["binding"])
    journals["through"] = numpy_numbers(columns["through"])
    producers = np.zeros(len(inner), PRODUCER_ROW)
    producers["place"] = np.repeat(journals["place"], np.diff(numpy_numbers(nested.offsets)))
    for name in ("producer", "last_commit", "span"):
        producers[name] = numpy_numbers(columns[name])
    return journals, producers


def damaged(why: str) -> DataError:
    return DataError(f"a frontier is damaged: {why}", do="restore the checkpoint it belongs to")
