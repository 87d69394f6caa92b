"""The bytes of log records: they are read back as written, or refused if damaged."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clock import CLOCK_MAX, Clock
from headrace.errors import DataError
from headrace.ids import PRODUCER_BITS, Holder, JournalId, Offset, Producer
from headrace.journal.local import records
from headrace.journal.local.records import (
    AckTable,
    CollectionDeleted,
    CollectionPut,
    Docs,
    JournalsCreated,
    JournalsDeleted,
    PublisherOpened,
    Record,
    Trimmed,
    ack_rows,
    decode,
    encode,
    moved_copy,
)
from headrace.journal.sequencer import Flags

U64 = st.integers(0, (1 << 64) - 1)
U63 = st.integers(0, (1 << 63) - 1)
JOURNALS = U63.map(JournalId)
PRODUCERS = st.integers(1, (1 << PRODUCER_BITS) - 1).map(Producer)
CLOCKS = st.integers(0, CLOCK_MAX).map(Clock)

DOCS = st.builds(
    Docs,
    JOURNALS,
    U63.map(Offset),
    PRODUCERS,
    CLOCKS,
    st.integers(1, records.COUNT_MAX),
    st.integers(0, records.SCHEMA_MAX),
    st.sampled_from([Flags.OUTSIDE, Flags.CONTINUE]),
    st.booleans(),
)
ACKS = st.builds(
    AckTable,
    st.lists(st.tuples(U64, U64, U64, U64), max_size=4).map(ack_rows),
    st.text(max_size=20),
    U63.map(Holder),
    st.binary(max_size=50),
    st.booleans(),
)
CATALOG = st.one_of(
    st.builds(CollectionPut, st.text(), st.lists(st.binary(), min_size=1).map(tuple)),
    st.builds(
        CollectionPut,
        name=st.text(),
        schemas=st.just((b"s",)),
        key=st.lists(st.text()).map(tuple),
        retention_s=st.none() | st.floats(0.1, 1e9),
        retention_bytes=st.none() | U63,
        id=U63,
    ),
    st.builds(CollectionDeleted, st.text()),
    st.builds(JournalsCreated, st.lists(st.tuples(JOURNALS, st.text()))),
    st.builds(JournalsDeleted, st.lists(JOURNALS)),
    st.builds(Trimmed, st.lists(st.tuples(JOURNALS, U63.map(Offset)))),
    st.builds(PublisherOpened, st.text(), PRODUCERS, U63.map(Holder)),
)


def plain(record: Record) -> Any:
    """Return a comparable record: numpy compares element by element."""
    return record._replace(rows=record.rows.tolist()) if isinstance(record, AckTable) else record


@given(DOCS, st.binary(max_size=50))
def test_docs_are_read_back_with_their_body(docs: Docs, body: bytes) -> None:
    read, rest = decode(memoryview(encode(docs) + body))
    assert read == docs
    assert isinstance(read, Docs)
    assert read.flags is docs.flags
    assert bytes(rest) == body
    assert records.docs_bytes(len(body)) == len(encode(docs)) + len(body)


@given(ACKS | CATALOG)
def test_other_records_are_read_back_and_have_no_body(record: AckTable | Any) -> None:
    read, rest = decode(memoryview(encode(record)))
    assert plain(read) == plain(record)
    assert not len(rest)


@given(DOCS | ACKS | CATALOG, st.data())
def test_a_record_cut_short_is_refused_or_shorter_by_what_may_vary(
    record: Record, data: st.DataObject
) -> None:
    whole = encode(record)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        read, _ = decode(memoryview(whole)[:cut])
    except DataError:
        return
    # The log's checksum covers lengths: only names and payloads, which end a record, may shrink.
    assert isinstance(record, AckTable)
    assert isinstance(read, AckTable)
    assert read.rows.tolist() == record.rows.tolist()


@given(st.binary())
def test_bytes_of_something_else_are_refused_or_a_record(data: bytes) -> None:
    with suppress(DataError):
        assert encode(decode(memoryview(data))[0])


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x04", b"\x84", b"\x01", b"\x02", b"\x03\xff"])
def test_unknown_kinds_and_fragments_are_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        decode(memoryview(data))


def test_unknown_flags_are_refused() -> None:
    docs = Docs(JournalId(1), Offset(0), Producer(1), Clock(1), 1, 0, Flags.OUTSIDE)
    damaged = bytearray(encode(docs))
    damaged[1] = 3
    with pytest.raises(DataError, match="not a valid Flags"):
        decode(memoryview(damaged))


@given(DOCS, st.binary(max_size=50))
def test_a_moved_copy_of_docs_differs_in_nothing_else(docs: Docs, body: bytes) -> None:
    moved, head, rest = moved_copy(memoryview(encode(docs) + body), lambda _journal, _offset: True)
    assert moved == docs._replace(moved=True)
    assert bytes(rest) == body
    assert decode(memoryview(head))[0] == moved


@given(ACKS)
def test_a_moved_copy_of_acks_has_the_rows_that_are_held_and_no_payload(acks: AckTable) -> None:
    moved, head, rest = moved_copy(memoryview(encode(acks)), lambda _, offset: offset % 2 == 0)
    assert isinstance(moved, AckTable)
    assert moved.rows.tolist() == [row for row in acks.rows.tolist() if row[1] % 2 == 0]
    assert (moved.moved, moved.payload, len(rest)) == (True, b"", 0)
    assert plain(decode(memoryview(head))[0]) == plain(moved)
