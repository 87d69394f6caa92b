"""The records that journals write to their log, and their bytes. Pure.

| record   | holds                                                                             |
|----------|-----------------------------------------------------------------------------------|
| Docs     | a frame of documents of one producer in one journal; its body is Arrow IPC         |
| AckTable | one transaction's end in each of its journals: commits, or rollbacks (clock 0)     |
| Catalog  | a change of collections and journals, or the opening of a named publisher          |

An `AckTable` record is the durable intent of a transaction and all its ACKs at once. The log keeps
a record whole or not at all, so at no moment do some journals of a transaction have their ACK and
others not, and nobody has to complete anything after a crash. Each journal indexes its own row of
the table, and the other rows are its hints: k journals cost k rows, not k² hints.

The clock of document i of a frame is the frame's clock plus i.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.clock import Clock
from headrace.errors import DataError
from headrace.ids import Holder, JournalId, Offset, Producer
from headrace.journal.sequencer import Flags

_DOCS, _ACKS, _CATALOG = 1, 2, 3
_DOCS_HEAD = struct.Struct("<BBHIQQQQ")
_ACKS_HEAD = struct.Struct("<BxHIQ")
ACK_ROW = np.dtype([("journal", "<u8"), ("offset", "<u8"), ("producer", "<u8"), ("clock", "<u8")])
ACK_BYTES = ACK_ROW.itemsize
"""How many bytes of its journal an ACK takes."""
COUNT_MAX = (1 << 32) - 1
SCHEMA_MAX = (1 << 16) - 1
NO_JOURNAL = 0
"""The journal in the row of a coordinator that wrote no documents; no reader sees that row."""


class Docs(NamedTuple):
    """A frame of documents."""

    journal: JournalId
    offset: Offset
    producer: Producer
    clock: Clock
    documents: int
    schema: int
    """The version of the collection's schema that the body has."""
    flags: Flags
    moved: bool = False
    """True for a copy that rewriting made: it replaces the journal's frame at this offset."""


class AckTable(NamedTuple):
    """The end of one transaction."""

    rows: npt.NDArray[np.void]
    name: str = ""
    """The name of the transaction's publisher; empty if it has none."""
    holder: Holder = Holder(0)
    payload: bytes = b""
    moved: bool = False


class CollectionPut(msgspec.Struct, frozen=True, tag="collection"):
    """A collection as it is from now on."""

    name: str
    schemas: tuple[bytes, ...]
    """Every version of its Arrow schema, serialized, oldest first."""
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    journals: int = 1
    """How many journals each partition has."""
    retention_s: float | None = None
    retention_bytes: int | None = None
    """The retention of each journal."""
    id: int = 0
    """The number of this incarnation among all collections; 0 before the owner creates it."""


class CollectionDeleted(msgspec.Struct, frozen=True, tag="collection-deleted"):
    name: str


class JournalsCreated(msgspec.Struct, frozen=True, tag="journals"):
    journals: list[tuple[JournalId, str]]


class JournalsDeleted(msgspec.Struct, frozen=True, tag="journals-deleted"):
    journals: list[JournalId]


class Trimmed(msgspec.Struct, frozen=True, tag="trimmed"):
    """The new begin of each of these journals."""

    begins: list[tuple[JournalId, Offset]]


class PublisherOpened(msgspec.Struct, frozen=True, tag="publisher"):
    name: str
    producer: Producer
    holder: Holder


CatalogRecord = (
    CollectionPut
    | CollectionDeleted
    | JournalsCreated
    | JournalsDeleted
    | Trimmed
    | PublisherOpened
)
Record = Docs | AckTable | CatalogRecord

_encode_catalog = msgspec.msgpack.Encoder().encode
_decode_catalog = msgspec.msgpack.Decoder(CatalogRecord).decode


AckRow = tuple[int, int, int, int]
"""Journal, offset, producer, clock."""


def ack_rows(rows: list[AckRow]) -> npt.NDArray[np.void]:
    return np.array(rows, dtype=ACK_ROW)


def encode(record: Record) -> bytes:
    """Return the bytes of a record; the body of a Docs record follows them."""
    match record:
        case Docs():
            return _DOCS_HEAD.pack(
                _DOCS | record.moved << 7,
                record.flags,
                record.schema,
                record.documents,
                record.journal,
                record.offset,
                record.producer,
                record.clock,
            )
        case AckTable():
            name = record.name.encode()
            head = _ACKS_HEAD.pack(
                _ACKS | record.moved << 7, len(name), len(record.rows), record.holder
            )
            return b"".join((head, record.rows.tobytes(), name, record.payload))
        case _:
            return bytes([_CATALOG]) + _encode_catalog(record)


def decode(data: memoryview) -> tuple[Record, memoryview]:
    """Return a record and the body that follows it (empty unless it is Docs)."""
    try:
        kind, moved = data[0] & 0x7F, bool(data[0] & 0x80)
        if kind == _DOCS:
            _, flags, schema, count, journal, offset, producer, clock = _DOCS_HEAD.unpack_from(data)
            docs = Docs(journal, offset, producer, clock, count, schema, Flags(flags), moved)
            return docs, data[_DOCS_HEAD.size :]
        if kind == _ACKS:
            _, name_bytes, count, holder = _ACKS_HEAD.unpack_from(data)
            rows = np.frombuffer(data, ACK_ROW, count, _ACKS_HEAD.size)
            tail = bytes(data[_ACKS_HEAD.size + rows.nbytes :])
            name, payload = tail[:name_bytes].decode(), tail[name_bytes:]
            return AckTable(rows, name, holder, payload, moved), data[:0]
        if kind == _CATALOG:
            return _decode_catalog(data[1:]), data[:0]
    except (ValueError, struct.error, msgspec.DecodeError, IndexError) as error:
        raise DataError(
            f"a log record cannot be read: {error}",
            do="use the Headrace that wrote it, or restore the log from a backup",
        ) from error
    raise DataError(f"a log record has the unknown kind {kind}", do="use a newer Headrace")


def moved_copy(
    data: memoryview, holds: Callable[[JournalId, int], bool]
) -> tuple[Docs | AckTable, bytes, memoryview]:
    """Return a copy of a Docs or AckTable record, marked as moved: the record, its bytes, its body.

    The copy of an AckTable record has only the rows that journals still hold, and no payload, which
    snapshots have. Otherwise rewriting would copy for ever what nobody needs.
    """
    record, body = decode(data)
    assert isinstance(record, Docs | AckTable)
    if isinstance(record, Docs):
        moved: Docs | AckTable = record._replace(moved=True)
    else:
        held = [holds(journal, offset) for journal, offset, _, _ in record.rows.tolist()]
        moved = AckTable(record.rows[np.array(held, np.bool_)], moved=True)
    return moved, encode(moved), body


def docs_bytes(body_bytes: int) -> int:
    """Return how many bytes of its journal a frame takes."""
    return _DOCS_HEAD.size + body_bytes
