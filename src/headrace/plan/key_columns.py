"""Keys of rows: equal keys in every process, and the partition that each belongs to. Pure.

Keys are equal as in SQL's GROUP BY: null is a key like any other, NaN equals NaN, and -0.0 equals
0.0. (A join leaves nulls out: see `joins`.) Floats are brought to one form before they are hashed
or compared; Arrow compares their bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from headrace.errors import SchemaError
from headrace.journal.documents.keyhash import key_hash


class PartitionRows(NamedTuple):
    """The rows of a table that belong to one partition."""

    partition: int
    rows: pa.RecordBatch


def check_columns(what: object, names: Sequence[str], schema: pa.Schema) -> None:
    """Raise SchemaError if the operator `what` names a column that its input does not have."""
    for name in names:
        if name not in schema.names:
            raise SchemaError(
                f"{what}: there is no column {name!r}",
                do=f"use one of {', '.join(schema.names)}" if schema.names else "add columns",
            )
        if schema.names.count(name) > 1:
            raise SchemaError(
                f"{what}: there are two columns {name!r}", do="rename one of them in a map before"
            )


def check_keys(what: object, names: Sequence[str], schema: pa.Schema) -> None:
    """Raise SchemaError if a key of the operator `what` is not there, or has no equality."""
    check_columns(what, names, schema)
    for name in names:
        try:
            _hashable(pa.nulls(0, schema.field(name).type), name)
        except SchemaError as error:
            raise SchemaError(f"{what}: {error.what}", do=error.do) from error


def with_plain_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the table with each float key in the form in which equal keys have equal bits."""
    for name in keys:
        index = table.schema.get_field_index(name)
        if pt.is_floating(table.schema.field(index).type):
            table = table.set_column(index, name, _plain_floats(table[name]))
    return table


def _plain_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pt.is_float16(kind):  # Arrow cannot compare them.
        return _plain_floats(column.cast(pa.float32())).cast(kind)
    zero, nan = pa.scalar(0.0, kind), pa.scalar(float("nan"), kind)
    plain = pc.if_else(pc.equal(column, zero), zero, column)
    return pc.if_else(pc.is_nan(plain), nan, plain)


def split_rows(table: pa.Table, keys: Sequence[str], partitions: int) -> Iterator[PartitionRows]:
    """Yield the rows of each partition that has some, in their order.

    Without keys every row belongs to partition 0.
    """
    for batch in table.combine_chunks().to_batches():
        if not keys or partitions == 1:
            yield PartitionRows(0, batch)
            continue
        numbers = partition_numbers(batch, keys, partitions)
        # NumPy sorts integers of 16 bits by radix, several times as fast as wider ones.
        order = np.argsort(numbers, kind="stable")
        sorted_rows = batch.take(pa.array(order))
        counts = np.bincount(numbers, minlength=partitions)
        ends = np.cumsum(counts)
        for partition in np.flatnonzero(counts).tolist():
            count = int(counts[partition])
            yield PartitionRows(partition, sorted_rows.slice(int(ends[partition]) - count, count))


def partition_numbers(
    batch: pa.RecordBatch, keys: Sequence[str], partitions: int
) -> NDArray[np.uint16]:
    """Return the partition of each row. It depends on the key alone.

    There are at most 65 536 partitions; `ShuffleWrite` allows fewer.
    """
    columns = {name: _hashable(batch[name], name) for name in keys}
    hashes = key_hash(pa.record_batch(columns), list(columns))
    return (hashes % np.uint64(partitions)).astype(np.uint16)


def _hashable(column: pa.Array, name: str) -> pa.Array:
    """Return a column that has equal values where this one has, of a type that can be hashed."""
    kind = column.type
    if pt.is_floating(kind):
        plain = _plain_floats(pa.chunked_array([column])).combine_chunks().cast(pa.float64())
        return _bits(plain, pa.int64())
    if pt.is_null(kind):
        return pa.nulls(len(column), pa.int64())
    if pt.is_unsigned_integer(kind):
        return _bits(column, pa.int64()) if kind == pa.uint64() else column.cast(pa.int64())
    if pt.is_time(kind) or pt.is_duration(kind) or pt.is_date64(kind):
        return _bits(column, pa.int32() if pt.is_time32(kind) else pa.int64())
    if _is_bytes(kind):
        return column.cast(pa.binary())
    if _has_hash(kind):
        return column
    raise SchemaError(
        f"column {name!r} has type {kind}, which cannot be a key",
        do="use numbers, text, bytes, booleans, dates or times, or a hash of it from a map before",
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (pt.is_large_string, pt.is_large_binary, pt.is_fixed_size_binary)
    )


def _has_hash(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            *(pt.is_string, pt.is_binary, pt.is_signed_integer, pt.is_boolean),
            *(pt.is_date32, pt.is_timestamp, pt.is_decimal128),
        )
    )


def _bits(column: pa.Array, kind: Any) -> pa.Array:
    """Return the stored bits of a column as integers of the same width; nulls stay null."""
    return column.view(kind)
