"""How a vector store lies in a key-value store.

    01 "schema"            format, dimension, metric and metadata columns; never changes
    01 "state"             the next internal id, list and chunk: none is ever used again
    02 list chunk          a chunk of a posting list: rows as one Arrow record batch
    03 list                the centroid of a posting list
    04 page                the dead rows among 65536 internal ids, while a chunk still holds them

A flush puts and deletes all of it in one atomic batch. So the rows of any moment are those of its
chunks, without its dead ones, and no index can say anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from headrace.decoders import decode_msgpack
from headrace.errors import DataError, ExistsError, VersionError
from headrace.stores.kv.contract import KeyValueSnapshot, KeyValueStore, WriteBatch, prefix_end
from headrace.stores.vectors.distance import Positions, Vectors
from headrace.stores.vectors.vector_rows import ID, VECTOR, Names, VectorSchema

T = TypeVar("T")

FORMAT = 1
SCHEMA_KEY = b"\x01schema"
STATE_KEY = b"\x01state"
CHUNKS, CENTROIDS, DEAD = b"\x02", b"\x03", b"\x04"
_NUMBER = "_number"
_PAGE_BITS = 16


class _StoredSchema(msgspec.Struct, frozen=True):
    format: int
    schema: VectorSchema


class NextNumbers(msgspec.Struct, frozen=True):
    """The numbers that a store gives out next."""

    next_row: int = 1
    next_list: int = 1
    next_chunk: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def chunk_key(posting_list: int, number: int) -> bytes:
    return CHUNKS + posting_list.to_bytes(4, "big") + number.to_bytes(8, "big")


def centroid_key(posting_list: int) -> bytes:
    return CENTROIDS + posting_list.to_bytes(4, "big")


class ChunkCodec:
    """Chunks as bytes: the columns of the store, and the internal id of each row."""

    def __init__(self, schema: VectorSchema) -> None:
        self._schema = schema
        self._columns = pa.schema([pa.field(_NUMBER, pa.int64()), *schema.columns])

    def batch(
        self, numbers: Positions, names: Names, vectors: Vectors, metadata: pa.RecordBatch
    ) -> pa.RecordBatch:
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, self._schema.dimension)
        columns = [pa.array(numbers), pa.array(names, pa.string()), lists, *metadata.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)

    @staticmethod
    def encode(batch: pa.RecordBatch) -> bytes:
        return batch.serialize().to_pybytes()  # type: ignore[no-any-return]

    def decode(self, stored: bytes, where: str) -> pa.RecordBatch:
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(stored), self._columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise _damaged(f"{where}: {error}") from error

    def numbers(self, batch: pa.RecordBatch) -> Positions:
        found: Positions = batch.column(_NUMBER).to_numpy()
        return found

    def vectors(self, batch: pa.RecordBatch) -> Vectors:
        flat: Vectors = batch.column(VECTOR).flatten().to_numpy()
        return flat.reshape(-1, self._schema.dimension)

    def metadata(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._schema.metadata_columns.names)

    @staticmethod
    def names(batch: pa.RecordBatch) -> Names:
        found: Names = batch.column(ID).to_numpy(zero_copy_only=False)
        return found


class DeadRows:
    """The internal ids of dead rows that chunks still hold. The thread that flushes owns it."""

    def __init__(self, pages: dict[int, BitMap] | None = None) -> None:
        self._pages = pages or {}
        self._changed: set[int] = set()

    def add(self, numbers: Positions) -> None:
        for page, low in _by_page(numbers):
            self._pages.setdefault(page, BitMap()).update(low)
            self._changed.add(page)

    def remove(self, numbers: Positions) -> None:
        for page, low in _by_page(numbers):
            self._pages.setdefault(page, BitMap()).difference_update(BitMap(low))
            self._changed.add(page)

    def put_changes(self, batch: WriteBatch) -> None:
        for page in sorted(self._changed):
            key = DEAD + page.to_bytes(8, "big")
            if dead := self._pages.get(page):
                batch.put(key, dead.serialize())
            else:
                self._pages.pop(page, None)
                batch.delete(key)
        self._changed.clear()

    @property
    def numbers(self) -> Positions:
        """All of them, ascending."""
        pages = [
            np.array(self._pages[page], np.int64) + (page << _PAGE_BITS)
            for page in sorted(self._pages)
        ]
        return np.concatenate([np.empty(0, np.int64), *pages])


def _by_page(numbers: Positions) -> Iterator[tuple[int, list[int]]]:
    if not len(numbers):
        return
    ordered = np.sort(numbers)
    pages, starts = np.unique(ordered >> _PAGE_BITS, return_index=True)
    for page, part in zip(pages.tolist(), np.split(ordered, starts[1:]), strict=True):
        yield page, (part & ((1 << _PAGE_BITS) - 1)).tolist()


def write_schema(store: KeyValueStore, schema: VectorSchema) -> None:
    """Make an empty key-value store a vector store, durably.

    One that is a vector store with the same schema stays as it is. Raises ExistsError if its
    schema is another.
    """
    with store.snapshot() as snapshot:
        found = read_schema(snapshot)
    if found is None:
        batch = WriteBatch()
        batch.put(SCHEMA_KEY, msgspec.msgpack.encode(_StoredSchema(FORMAT, schema)))
        batch.put(STATE_KEY, NextNumbers().encode())
        store.wait_durable(store.write(batch))
    elif found != schema:
        raise ExistsError(
            f"the store holds vectors of dimension {found.dimension}, metric {found.metric} and "
            f"metadata {dict(found.metadata)}",
            do="open it with that schema, or choose another place",
        )


def read_schema(snapshot: KeyValueSnapshot) -> VectorSchema | None:
    """Return the schema of a store; None if it is no vector store."""
    stored = snapshot.get(SCHEMA_KEY)
    if stored is None:
        return None
    version = _decoded(stored, _Format, "the schema").format
    if version > FORMAT:
        raise VersionError(
            f"the vector store has format {version}, not {FORMAT}",
            do="use the newer version of Headrace that wrote it",
        )
    return _decoded(stored, _StoredSchema, "the schema").schema


class _Format(msgspec.Struct):
    format: int


def read_state(snapshot: KeyValueSnapshot) -> NextNumbers:
    stored = snapshot.get(STATE_KEY)
    if stored is None:
        raise _damaged("its state is missing")
    return _decoded(stored, NextNumbers, "the state")


def _decoded(stored: bytes, kind: type[T], what: str) -> T:
    try:
        return decode_msgpack(stored, kind)
    except msgspec.DecodeError as error:
        raise _damaged(f"{what}: {error}") from error


def read_chunks(snapshot: KeyValueSnapshot) -> Iterator[tuple[int, int, bytes]]:
    """Yield list, number and contents of every chunk, by list and number."""
    for key, stored in snapshot.scan(CHUNKS, prefix_end(CHUNKS)):
        yield int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:], "big"), stored


def read_centroids(snapshot: KeyValueSnapshot, dimension: int) -> dict[int, Vectors]:
    found = {}
    for key, stored in snapshot.scan(CENTROIDS, prefix_end(CENTROIDS)):
        if len(stored) != 4 * dimension:
            raise _damaged(f"a centroid has {len(stored)} bytes")
        found[int.from_bytes(key[1:], "big")] = np.frombuffer(stored, np.float32)
    return found


def read_dead(snapshot: KeyValueSnapshot) -> DeadRows:
    pages = {}
    for key, stored in snapshot.scan(DEAD, prefix_end(DEAD)):
        pages[int.from_bytes(key[1:], "big")] = BitMap.deserialize(stored)
    return DeadRows(pages)


def check_rows(numbers: Positions, next_row: int, lists: Iterable[int], known: set[int]) -> None:
    """Raise DataError if the rows of a store cannot be what a flush has written."""
    if len(np.unique(numbers)) < len(numbers):
        raise _damaged("two chunks hold one row")
    if len(numbers) and not 1 <= int(numbers.min()) <= int(numbers.max()) < next_row:
        raise _damaged(f"a chunk holds a row beyond {next_row}")
    if strange := set(lists) - known:
        raise _damaged(f"posting list {min(strange)} has no centroid")


def _damaged(what: str) -> DataError:
    return DataError(f"the vector store is damaged: {what}", do="restore it from a copy")
