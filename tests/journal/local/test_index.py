"""The index against plain lists, over simulated histories."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from headrace.errors import AheadOfHeadError, BehindRetentionError, NotFoundError
from headrace.ids import JournalId, Offset
from headrace.journal.local import index as indexes
from headrace.journal.local.index import Entry, Index, JournalIndex
from headrace.journal.local.log_frames import DOCS_ROW
from headrace.journal.local.records import (
    ACK_BYTES,
    AckTable,
    JournalsCreated,
    JournalsDeleted,
    ack_rows,
)
from tests.journal.local.history import Replay, history
from tests.journal.local.simulator import Logged, journal_frames


def journal(*frame_ends: int) -> JournalIndex:
    """Return a journal with a frame of clock 10 * i up to each of the ends."""
    index_of_journal = JournalIndex(JournalId(1), "c/0000")
    for i, end in enumerate(frame_ends):
        index_of_journal.add(index_of_journal.head, end, 1000 + i, 10 * i, DOCS_ROW)
    return index_of_journal


def every_entry(index_of_journal: JournalIndex) -> list[Entry]:
    return index_of_journal.entries(
        index_of_journal.begin, index_of_journal.head, len(index_of_journal) + 1
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_index_has_every_frame_of_every_journal(seed: int) -> None:
    log = history(seed)
    index = Replay().take(log).index
    given = [Logged(r, b, {}) for _, r, b in log if not getattr(r, "moved", False)]
    frames = journal_frames(given)
    for id, found in index.journals.items():
        expected = [(f.offset, f.end) for f in frames[id] if f.offset >= found.begin]
        assert [(e.offset, e.end) for e in every_entry(found)] == expected


@pytest.mark.parametrize("seed", range(8))
def test_every_entry_points_at_a_record_that_says_the_same(seed: int) -> None:
    log = history(seed)
    by_position = {placed.position: placed for placed in log}
    for id, found in Replay().take(log).index.journals.items():
        for entry in every_entry(found):
            record = by_position[entry.position].record
            if isinstance(record, AckTable):
                assert record.rows[entry.row][["journal", "offset"]].tolist() == (id, entry.offset)
            else:
                assert entry.row == DOCS_ROW
                assert (record.journal, record.offset) == (id, entry.offset)  # type: ignore[union-attr]


def test_entries_at_every_offset_and_limit() -> None:
    index_of_journal = journal(10, 15, 40, 41)
    whole = every_entry(index_of_journal)
    assert [(e.offset, e.end) for e in whole] == [(0, 10), (10, 15), (15, 40), (40, 41)]
    for offset in range(45):
        for through in range(45):
            for most in range(6):
                expected = [e for e in whole if offset <= e.offset < through][:most]
                assert index_of_journal.entries(Offset(offset), Offset(through), most) == expected


def test_trimming_forgets_whole_frames_and_never_goes_back() -> None:
    index_of_journal = journal(10, 20, 30)
    for begin, left in [(0, 3), (10, 2), (5, 2), (20, 1), (30, 0), (10, 0)]:
        index_of_journal.trim(Offset(begin))
        assert (index_of_journal.begin, len(index_of_journal), index_of_journal.head) == (
            max(begin, index_of_journal.begin),
            left,
            30,
        )
    index_of_journal.add(30, 35, 2000, 99, DOCS_ROW)
    assert every_entry(index_of_journal) == [Entry(Offset(30), Offset(35), 2000, DOCS_ROW)]


def test_moving_changes_where_a_frame_is_and_nothing_else() -> None:
    index_of_journal = journal(10, 20, 30)
    index_of_journal.move(10, 5000, 3)
    assert index_of_journal.entries(Offset(10), Offset(20), 1) == [
        Entry(Offset(10), Offset(20), 5000, 3)
    ]
    index_of_journal.trim(Offset(20))
    for gone in (0, 10, 15, 30):
        index_of_journal.move(gone, 6000, 0)
    assert [e.position for e in every_entry(index_of_journal)] == [1002]


@pytest.mark.parametrize(
    ("offset", "through", "error"),
    [
        (9, 30, BehindRetentionError),
        (10, 31, AheadOfHeadError),
        (31, 31, AheadOfHeadError),
        (31, 20, AheadOfHeadError),
        (10, 30, None),
        (30, 30, None),
    ],
)
def test_what_can_be_read(offset: int, through: int, error: type[Exception] | None) -> None:
    index_of_journal = journal(10, 20, 30)
    index_of_journal.trim(Offset(10))
    if error is None:
        index_of_journal.check_readable(Offset(offset), Offset(through))
        return
    with pytest.raises(error, match="c/0000: offset"):
        index_of_journal.check_readable(Offset(offset), Offset(through))


def test_a_deleted_journal_is_not_found() -> None:
    with pytest.raises(NotFoundError, match=r"journal of id \d+ is gone"):
        Index().journal(JournalId(7))


def test_the_journals_deleted_last_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "DELETED_REMEMBERED", 1)
    ids = [JournalId(1), JournalId(2)]
    index_of_journal = Index()
    index_of_journal.apply(JournalsCreated([(id, f"c/000{id}") for id in ids]), 0, 0)
    index_of_journal.apply(JournalsDeleted(ids), 0, 0)
    with pytest.raises(NotFoundError, match="journal c/0002 is gone"):
        index_of_journal.journal(ids[1])
    with pytest.raises(NotFoundError, match=r"journal of id \d+ is gone"):
        index_of_journal.journal(ids[0])


@pytest.mark.parametrize("seed", range(8))
def test_live_bytes_and_held_positions_are_what_a_count_of_all_frames_says(seed: int) -> None:
    log = history(seed)
    index = Replay().take(log).index
    rng = Random(seed)
    bases = sorted({0, *(placed.position for placed in rng.sample(log, 5))})
    ends = [*bases[1:], log[-1].end]
    entries = [e for j in index.journals.values() for e in every_entry(j)]
    live = index.live_bytes(np.array(bases, np.uint64)).tolist()
    for base, end, held in zip(bases, ends, live, strict=True):
        inside = [e for e in entries if base <= e.position < end]
        assert held == sum(e.end - e.offset for e in inside)
        assert index.held_within(base, end) == sorted({e.position for e in inside})


def test_live_bytes_of_an_empty_index() -> None:
    index = Index()
    assert index.live_bytes(np.array([0, 10], np.uint64)).tolist() == [0, 0]
    index.apply(JournalsCreated([(JournalId(1), "c/0000")]), 0, 0)
    assert index.live_bytes(np.array([0, 10], np.uint64)).tolist() == [0, 0]
    assert index.held_within(0, 10) == []


def test_two_producers_of_one_transaction_in_one_journal_have_an_entry_each() -> None:
    index = Index()
    index.apply(JournalsCreated([(JournalId(1), "c/0000")]), 0, 0)
    rows = [(1, 0, 7, 5), (2, 0, 7, 5), (1, ACK_BYTES, 8, 6)]
    moved = index.apply(AckTable(ack_rows(rows)), 100, 0)
    assert [j.id for j in moved] == [1, 1]
    assert [e.row for e in every_entry(index.journal(JournalId(1)))] == [0, 2]
