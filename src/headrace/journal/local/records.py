"""What the journals of a workspace write to their log, and the bytes of it. Pure.

| record  | says                                                                          |
|---------|-------------------------------------------------------------------------------|
| Docs    | a frame of documents of one producer in one journal; its body is Arrow IPC     |
| AckTable    | one transaction's end in every journal it touched: commits, or rollbacks (clock 0) |
| Catalog | collections and journals that came, changed or went, and named publishers      |

An `AckTable` record is the durable intent and all its ACKs at once: the log keeps a record whole or
not at all, so there is no moment at which some journals of a transaction have their ACK and others
do not, and nothing to complete after a crash. Each journal indexes its own row of the table, and
the other rows are its hints: k journals cost k rows, not k² hints.

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
"""How much of its journal an ACK takes."""
COUNT_MAX = (1 << 32) - 1
SCHEMA_MAX = (1 << 16) - 1
NO_JOURNAL = 0
"""Of the row of a coordinator that wrote no documents itself: nothing for a reader."""


class Docs(NamedTuple):
    journal: JournalId
    offset: Offset
    producer: Producer
    clock: Clock
    documents: int
    schema: int
    """Which version of the collection's schema the body was written under."""
    flags: Flags
    moved: bool = False
    """A copy made by rewriting: it takes the place of what the journal has at this offset."""


class AckTable(NamedTuple):
    rows: npt.NDArray[np.void]
    name: str = ""
    """Of the publisher whose transaction it was; empty if it has none."""
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
    """Of each journal."""
    id: int = 0
    """Numbers the incarnations of all collections; 0 in a definition that is yet to be made."""


class CollectionDeleted(msgspec.Struct, frozen=True, tag="collection-deleted"):
    name: str


class JournalsCreated(msgspec.Struct, frozen=True, tag="journals"):
    journals: list[tuple[JournalId, str]]


class JournalsDeleted(msgspec.Struct, frozen=True, tag="journals-deleted"):
    journals: list[JournalId]


class Trimmed(msgspec.Struct, frozen=True, tag="trimmed"):
    """Where each of these journals begins from now on."""

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
    """The record's bytes; the body of a Docs record follows them."""
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
    """A record, and the body that follows it (empty unless it is Docs)."""
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
            f"a log record that cannot be read: {error}",
            do="it was written by another version, or by something else",
        ) from error
    raise DataError(f"a log record of unknown kind {kind}", do="it was written by a newer version")


def moved_copy(
    data: memoryview, holds: Callable[[JournalId, int], bool]
) -> tuple[Docs | AckTable, bytes, memoryview]:
    """A copy of a Docs or AckTable record that is marked as moved: itself, its bytes, its body.

    Of an AckTable record only the rows that journals still hold are copied, and no payload, which
    snapshots have: else what nobody needs would be copied for ever.
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
    """How much of its journal a frame takes."""
    return _DOCS_HEAD.size + body_bytes
