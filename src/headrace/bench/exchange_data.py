"""The rows that `headrace bench exchange` shuffles, and the functions before and after a shuffle.

Both engines call the same functions on record batches: `pass_on` before the shuffle, then
`sum_rows` when time is measured and `hash_rows` when the rows are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from headrace.journal.documents.keyhash import key_hash

SUMS = pa.schema([("rows", pa.int64()), ("sum", pa.int64())])
"""What is left of a batch after the shuffle: its rows, and a sum that no order changes."""

_KEYS = 100_000
_TEXT_BYTES = 100
_FLOATS = 768
_ZIPF = 1.3


class DataSet(NamedTuple):
    """Rows with a `key` to shuffle by, and a `value`."""

    name: str
    rows: int
    """At scale 1."""
    generate: Callable[[np.random.Generator, int], pa.Table]
    ddl: str
    """Its columns, for Spark."""


def _ints(random: np.random.Generator, rows: int) -> pa.Table:
    return _table(random.integers(0, _KEYS, rows), random.integers(0, 1 << 62, rows))


def _strings(random: np.random.Generator, rows: int) -> pa.Table:
    text = random.integers(ord("a"), ord("z") + 1, rows * _TEXT_BYTES, np.uint8)
    ends = np.arange(rows + 1, dtype=np.int32) * _TEXT_BYTES
    values = pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(text))
    return _table(random.integers(0, _KEYS, rows), values)


def _vectors(random: np.random.Generator, rows: int) -> pa.Table:
    floats = pa.array(random.standard_normal(rows * _FLOATS, np.float32))
    values = pa.FixedSizeListArray.from_arrays(floats, _FLOATS)
    return _table(random.integers(0, _KEYS, rows), values)


def _zipf(random: np.random.Generator, rows: int) -> pa.Table:
    return _table(random.zipf(_ZIPF, rows), random.integers(0, 1 << 62, rows))


def _table(keys: NDArray[np.int64], values: Any) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64()), "value": values})


DATA_SETS = (
    DataSet("ints", 8_000_000, _ints, "key long, value long"),
    DataSet("strings", 2_000_000, _strings, "key long, value string"),
    DataSet("vectors", 100_000, _vectors, "key long, value array<float>"),
    DataSet("zipf", 8_000_000, _zipf, "key long, value long"),
)


def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch as it is."""
    return batch


def sum_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the number of rows, and the sum of all keys and all words of the values."""
    sums = [batch["key"].to_numpy().sum(), _words(batch["value"]).sum(dtype=np.int64)]
    # Sums of arrays wrap around.
    return _sums(batch, np.array(sums).sum())


def hash_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the number of rows, and the sum of a hash of each row."""
    value = batch["value"]
    if not pt.is_string(value.type) and not pt.is_int64(value.type):
        value = _as_binary(value)
    hashes = key_hash(pa.record_batch({"key": batch["key"], "value": value}), ["key", "value"])
    return _sums(batch, hashes.sum().view(np.int64))


def _sums(batch: pa.RecordBatch, total: np.int64) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([batch.num_rows], pa.int64()), pa.array([int(total)], pa.int64())], schema=SUMS
    )


def _words(value: pa.Array) -> NDArray[Any]:
    """Return the bytes of a column without nulls as numbers."""
    if pt.is_int64(value.type):
        return np.asarray(value.to_numpy())
    if pt.is_string(value.type):
        ends = np.frombuffer(value.buffers()[1], np.int32)[value.offset :][: len(value) + 1]
        return np.frombuffer(value.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    return np.asarray(value.flatten().to_numpy()).view(np.int64)


def _as_binary(vectors: pa.Array) -> pa.Array:
    """Return each vector as its bytes."""
    data = np.ascontiguousarray(vectors.flatten().to_numpy()).view(np.uint8)
    ends = np.arange(len(vectors) + 1, dtype=np.int32) * (_FLOATS * 4)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(vectors), buffers)
