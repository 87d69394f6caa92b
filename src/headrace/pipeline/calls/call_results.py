"""The result of a call, as the ledger keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from headrace.decoders import decode_msgpack
from headrace.errors import DataError, UnitError
from headrace.pipeline.contract import DeadRow

ERROR_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class CallResult:
    """Rows that a call returned, and rows that it gave up."""

    table: pa.Table | None
    """None if every row was given up."""
    dead: Sequence[DeadRow] = field(default=())
    cost: float = 0.0

    def encode(self, rows: Sequence[int]) -> bytes:
        """Return the result of a call of these rows, without their numbers.

        An equal call has other rows, in another place or unit, and may use the result too.
        """
        table = b""
        if self.table is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.table.schema) as writer:
                writer.write_table(self.table)
            table = sink.getvalue().to_pybytes()
        dead = [each._replace(row=rows.index(each.row)) for each in self.dead]
        return msgspec.msgpack.encode((table, dead))

    @classmethod
    def decode(cls, data: bytes, rows: Sequence[int]) -> CallResult:
        """Return a result from the ledger, for a call of these rows.

        Its cost was counted when it was recorded.
        """
        try:
            stream, dead = decode_msgpack(data, tuple[bytes, list[DeadRow]])
            table = pa.ipc.open_stream(stream).read_all() if stream else None
        except (msgspec.MsgspecError, pa.ArrowException) as error:
            raise DataError(
                f"a result of {len(data)} bytes in the ledger cannot be read: {error}",
                do="run the job with on_change='restart', which makes its calls again",
            ) from error
        return cls(table, [each._replace(row=rows[each.row]) for each in dead])


def content_of(batch: pa.RecordBatch) -> bytes:
    """Hash the values of a batch: equal rows of equal types have equal hashes."""
    # A copy has no offsets and no bitmaps of a larger table, which would be hashed too.
    every = pa.array(range(batch.num_rows), pa.int64())
    copy = batch.take(every).replace_schema_metadata(None)
    types = copy.schema.serialize().to_pybytes()
    if any(_plain(each.type) != each.type for each in copy.schema):
        # A serialized batch has the places of values in a dictionary, and not the dictionary.
        columns = [each.cast(_plain(each.type)) for each in copy.columns]
        copy = pa.record_batch(columns, copy.schema.names)
    return hashlib.blake2b(types + bytes(copy.serialize()), digest_size=16).digest()


def _plain(type: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries, whatever holds them."""
    if pa.types.is_dictionary(type):
        return _plain(type.value_type)
    if pa.types.is_struct(type):
        return pa.struct([each.with_type(_plain(each.type)) for each in type])
    if pa.types.is_map(type):
        return pa.map_(_plain(type.key_type), _plain(type.item_type))
    if pa.types.is_large_list(type):
        return pa.large_list(type.value_field.with_type(_plain(type.value_type)))
    if pa.types.is_fixed_size_list(type):
        item = type.value_field.with_type(_plain(type.value_type))
        return pa.list_(item, type.list_size)
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_plain(type.value_type)))
    return type


def concat(tables: Sequence[pa.Table | None]) -> pa.Table | None:
    """Return all rows in order, or None if there are none."""
    present = [table for table in tables if table is not None and table.num_rows]
    if not present:
        return None
    try:
        return pa.concat_tables(present, promote_options="permissive")
    except (pa.ArrowException, TypeError) as error:
        raise UnitError(
            f"calls of the operator returned columns of different types: {one_line(error)}",
            do="declare the schema of what the operator returns",
        ) from error


def one_line(error: BaseException | None) -> str:
    """Return an error as one line of bounded length."""
    text = str(error) if isinstance(error, UnitError) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split()).removesuffix(":")
    return line if len(line) <= ERROR_LENGTH_MAX else f"{line[: ERROR_LENGTH_MAX - 3]}..."
