"""Too many pending transactions: journals that are ahead wait for those that are behind."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import QueueFullError, StorageError
from headrace.frontier import JOURNAL_ROW, place
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import INFINITE, Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.state import SessionState
from headrace.shuffle.slice.effects import SendBounds
from headrace.shuffle.slice.journal_read import Phase
from headrace.shuffle.slice.state import Limits
from tests.shuffle.builders import frames, source
from tests.shuffle.slice.scripted_slice import ScriptedSlice, only, sent

A, B, C = (place(tag, tag) for tag in range(3))
P = 7
PENDING_MAX = 10


def session(*, b_head: int = 10_000) -> SessionState:
    """Return a Session whose transaction n has ACKs at offset 10 n of A and of B, or of A and C."""
    sources = Sources([source(tag, name) for tag, name in enumerate("abc")])
    state = SessionState(
        sources, split_evenly(1), Checkpoint(), None, 1 << 60, pending_max=PENDING_MAX
    )
    heads = {1: 10_000, 2: b_head, 3: 10_000}
    found = [
        JournalInfo(JournalId(id), f"{' abc'[id]}/0000", Offset(0), Offset(head), 1)
        for id, head in heads.items()
    ]
    state.journals_changed(Changes(found, [], {}))
    return state


def read_a(state: SessionState, first: int, last: int, *, also: str = "b") -> None:
    """Report the ACKs of these transactions in A; each has another one in a journal of `also`."""
    others = ["abc".index(name) for name in also]
    numbers = range(first, last + 1)
    ids = [(0, P, 10 * n) for n in numbers]
    row = (A, P, 10 * last, -10 * last - 1, 10 * first, 10 * first)
    state.progress(
        0,
        ProgressReport(
            np.array([(A, 10 * last + 1)], JOURNAL_ROW),
            np.array([row], PROGRESS_ROW),
            np.array([(*id, A, P, id[2], id[2] - 5, id[2]) for id in ids], COMMIT_ROW),
            np.array([_part(id, others[n % len(others)]) for n, id in enumerate(ids)], PART_ROW),
            last - first + 1,
        ),
    )
    state.next_checkpoint()


def _part(id: tuple[int, int, int], tag: int) -> tuple[int, ...]:
    """Return the row of the ACK that a transaction also has in the journal of that tag."""
    return (*id, tag + 1, tag, P, id[2], id[2])


def read_b(state: SessionState, through: int) -> None:
    row = (B, P, 10 * through, -10 * through - 1, 0, 10 * through)
    journals = np.array([(B, 10 * through + 1)], JOURNAL_ROW)
    state.progress(0, ProgressReport(journals, np.array([row], PROGRESS_ROW), documents=1))
    state.next_checkpoint()


# proves G12
def test_while_too_many_are_pending_only_the_journals_that_they_wait_for_are_read() -> None:
    state = session()
    read_a(state, 1, PENDING_MAX)
    assert state.hold().behind == {}
    read_a(state, PENDING_MAX + 1, PENDING_MAX + 2)
    assert state.hold().behind == {0: (B,)}
    read_b(state, PENDING_MAX // 2 + 1)
    assert state.hold().behind == {0: (B,)}, "more than half are pending"
    read_b(state, PENDING_MAX // 2 + 2)
    assert state.hold().behind == {}


def test_all_journals_that_transactions_wait_for_go_on_together() -> None:
    state = session()
    read_a(state, 1, PENDING_MAX + 1, also="bc")
    assert state.hold().behind == {0: (B, C)}


# proves G12, G13
def test_no_journal_waits_for_a_missing_ack_and_the_hard_limit_names_it() -> None:
    """Slices read on, so that clocks get beyond the horizon."""
    state = session(b_head=0)
    read_a(state, 1, 4 * PENDING_MAX)
    assert state.hold().behind == {}
    with pytest.raises(StorageError) as failed:
        read_a(state, 4 * PENDING_MAX + 1, 4 * PENDING_MAX + 1)
    assert not isinstance(failed.value, QueueFullError)
    assert failed.value.what == (
        "41 transactions are pending: producer 000000000007 waits for an ACK in b/0000"
    )


# proves G12, G13
def test_a_journal_that_lags_is_named_at_the_hard_limit_and_a_retry_helps() -> None:
    state = session()
    with pytest.raises(QueueFullError, match=r"waits for an ACK in b/0000; retry once that"):
        read_a(state, 1, 4 * PENDING_MAX + 1)


# proves G12, G13
@pytest.mark.parametrize("ahead_bytes", [1, 40, 1 << 20])
def test_a_slice_that_is_ahead_in_one_journal_goes_on_with_the_one_that_is_behind(
    ahead_bytes: int,
) -> None:
    """This holds even if frames of the first journal, which come first, take all the room."""
    slice = ScriptedSlice(limits=Limits(ahead_bytes=ahead_bytes, fetch_bytes=20))
    ahead = slice.start(frames("O10 O11 O12 O13", journal=1), tag=0)
    behind = slice.start(frames("O20 O21 O22", journal=2), tag=1)
    slice.held = {ahead, behind}
    slice.run()
    slice.state.hold([], {0: [behind]})
    slice.held = set()
    assert clocks(slice) == [20, 21, 22]
    assert slice.state.reads[ahead].phase is Phase.HELD
    assert only(slice.effects, SendBounds)[-1].bounds == (INFINITE,), "it holds no Queue back"
    started = slice.start(frames("O30", journal=3), tag=2)
    assert sent(slice.run()) == []
    assert slice.state.reads[started].phase is Phase.HELD
    slice.state.hold([])
    assert clocks(slice) == [10, 11, 12, 13, 30]


def clocks(slice: ScriptedSlice) -> list[int]:
    """Return the clocks of the documents that the Slice sends, in order."""
    return [n for _, first, last in sent(slice.run()) for n in range(first, last + 1)]
