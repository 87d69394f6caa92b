"""A report that cannot be true ends the Session: it would become part of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headrace.clock import Clock
from headrace.errors import ProtocolError
from headrace.frontier import JOURNAL_ROW, place
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.messages import StartRead
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.effects import SendSlice
from headrace.shuffle.session.state import SessionState
from tests.shuffle.builders import source

Row = tuple[int, ...]

HEAD = 100
A, B = place(0, 0), place(1, 1)
"""Places of the collections `a` and `b`, which are in different cohorts."""


def session(members: int = 1) -> SessionState:
    """Return a Session that reads both journals, which end at 100."""
    sources = Sources([source(0, "a", cohort=0), source(1, "b", cohort=1)])
    state = SessionState(sources, split_evenly(members), Checkpoint(), None, 1 << 60)
    found = [
        JournalInfo(JournalId(at), f"{name}/0000", Offset(10), Offset(HEAD), 1)
        for at, name in enumerate("ab", 1)
    ]
    state.journals_changed(Changes(found, [], {}))
    return state


def delta(
    journals: Sequence[Row],
    producers: Sequence[Row] = (),
    commits: Sequence[Row] = (),
    parts: Sequence[Row] = (),
    documents: int = 1,
) -> ProgressReport:
    """Return a report. A producer row without `first` has committed one span, or none."""
    rows = [row if len(row) > 5 else (*row, row[2] * (row[4] >= 0)) for row in producers]
    return ProgressReport(
        np.array(list(journals), JOURNAL_ROW),
        np.array(rows, PROGRESS_ROW),
        np.array(list(commits), COMMIT_ROW),
        np.array(list(parts), PART_ROW),
        documents,
    )


BEFORE = delta([(A, 50)], [(A, 7, 1000, -50, 10)])
SAME = delta([(A, 50)], [(A, 7, 1000, -50, -1)])
TRANSACTION = (7, 1000)


# proves G13
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (delta([(A, 60)], documents=-1), "it counts -1 documents"),
        (delta([(place(0, 9), 60)]), "it is about place 9, which it does not read"),
        (delta([(place(7, 0), 60)]), "it is about place 30064771072, which it does not read"),
        (delta([(A, 60), (A, 60)]), "place 0 is there twice"),
        (delta([(A, 49)]), "place 0 goes back from 50 to 49"),
        (delta([(B, 9)]), f"place {B} goes back from 10 to 9"),
        (delta([(A, -1)]), "place 0 goes back from 50 to -1"),
        (delta([(A, HEAD + 1)]), "place 0 is read through 101, and ends at 100"),
        (delta([], [(A, 7, 1001, -50, -1)]), "is of a journal that is not in it"),
        (delta([(A, 60)], [(A, 0, 1, -60, -1)]), "000000000000 is not a 48-bit producer"),
        (delta([(A, 60)], [(A, 1 << 48, 1, -60, -1)]), "is not a 48-bit producer"),
        (delta([(A, 60)], [(A, 7, 999, -60, -1)]), "place 0: producer 000000000007 goes back from"),
        (delta([(A, 60)], [(A, 7, 1001, 61, -1)]), "has a span at 61, read only through 60"),
        (delta([(A, 60)], [(A, 7, 1001, -61, -1)]), "has a span at -61, read only through 60"),
        (delta([(A, 60)], [(A, 7, 1001, -(1 << 63), -1)]), "has a span at -9223372036854775808"),
        (delta([(A, 60)], [(A, 7, 1001, -60, 61)]), "began at 61, read only through 60"),
        (delta([(A, 60)], [(A, 7, 1001, -60, -2)]), "began at -2, read only through 60"),
        (delta([(A, 60)], [(A, 7, 1001, -60, 50, 1002)]), "commits 1002 first and 1001 last"),
        (delta([(A, 60)], [(A, 7, 1001, -60, 50, 0)]), "commits 0 first and 1001 last"),
        (delta([(A, 60)], [(A, 7, 1001, -60, -1)] * 2), "producer 000000000007 is there twice"),
        (
            delta([], [], [(0, *TRANSACTION, place(0, 9), 7, 1000, 1, 0)]),
            "it is about place 9, which",
        ),
        (delta([], [], [(1, *TRANSACTION, A, 7, 1000, 1, 0)]), "place 0 is not in cohort 1"),
        (
            delta([], [], [(0, *TRANSACTION, A, 7, 1000, 1001, 0)]),
            "commits 1000, which is before it",
        ),
        (
            delta([(A, 60)], [], [(0, *TRANSACTION, A, 7, 1000, 1, 61)]),
            "began at 61, read only through",
        ),
        (
            delta([(A, 60)], [], [(0, *TRANSACTION, A, 7, 1000, 1, -1)]),
            "began at -1, read only through",
        ),
        (delta([], [], [], [(0, *TRANSACTION, 5, 9, 7, 1000, 3)]), "binding 9 is not in cohort 0"),
        (delta([], [], [], [(0, *TRANSACTION, 5, 1, 7, 1000, 3)]), "binding 1 is not in cohort 0"),
        (delta([], [], [], [(0, *TRANSACTION, 5, 0, 7, 1000, -3)]), "an ACK at -3 of journal 5"),
    ],
)
def test_a_report_that_cannot_be_true_is_refused_and_nothing_of_it_is_used(
    wrong: ProgressReport, why: str
) -> None:
    state = session()
    state.progress(0, BEFORE)
    assert state.next_checkpoint() is not None
    with pytest.raises(ProtocolError) as refused:
        state.progress(0, wrong)
    assert refused.value.what.startswith("member 0 sent a ProgressDelta that cannot be read: ")
    assert why in refused.value.what
    assert state.next_checkpoint() is None


@pytest.mark.parametrize(
    "right",
    [
        delta([]),
        SAME,
        delta([(A, HEAD), (B, 10)], [(A, 7, 1001, 60, 50), (A, 8, 0, 60, -1)]),
        delta(
            [], [], [(0, *TRANSACTION, A, 7, 1000, 1000, 0)], [(0, *TRANSACTION, 99, 0, 7, 1000, 0)]
        ),
    ],
)
def test_a_report_that_may_be_true_is_taken(right: ProgressReport) -> None:
    state = session()
    state.progress(0, BEFORE)
    state.progress(0, right)


# proves G13
def test_a_member_reports_what_it_reads_and_nothing_else() -> None:
    state = session(members=2)
    reader = state.assignment._readers[A]
    with pytest.raises(ProtocolError, match=f"member {1 - reader} sent a ProgressDelta .* place 0"):
        state.progress(1 - reader, BEFORE)
    state.progress(reader, BEFORE)


def test_a_journal_that_grew_is_read_further_and_a_deleted_one_is_heard_out() -> None:
    state = session()
    state.journals_changed(Changes([], [], {JournalId(1): Offset(200)}))
    state.progress(0, delta([(A, 200)]))
    state.journals_changed(Changes([], [JournalId(1)], {}))
    state.progress(0, delta([(A, 300)]))


# proves G13
def test_a_producer_does_not_go_back_behind_the_checkpoint_that_is_resumed() -> None:
    before = session()
    before.progress(0, delta([(A, 50)], [(A, 7, 1000, 20, 10)]))
    checkpoint = before.next_checkpoint()
    assert checkpoint is not None
    sources = Sources([source(0, "a")])
    state = SessionState(sources, split_evenly(1), checkpoint, None, 1 << 60)
    # A journal that the checkpoint knows is not read before it is started.
    with pytest.raises(ProtocolError, match="place 0, which it does not read"):
        state.progress(0, delta([(A, 50)]))
    info = JournalInfo(JournalId(1), "a/0000", Offset(10), Offset(HEAD), 1)
    *_, sent = state.journals_changed(Changes([info], [], {}))
    assert isinstance(sent, SendSlice)
    assert isinstance(sent.message, StartRead)
    [start] = sent.message.reads
    assert (start.offset, start.producers) == (20, ((Producer(7), Clock(1000)),))
    with pytest.raises(ProtocolError, match="place 0 goes back from 20 to 19"):
        state.progress(0, delta([(A, 19)]))
    with pytest.raises(ProtocolError, match="goes back from 1000 to 999"):
        state.progress(0, delta([(A, 50)], [(A, 7, 999, 20, -1)]))


# proves G13
@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ([], "it has 0 tables, not 4"),
        ([b""] * 3, "it has 3 tables, not 4"),
        ([b""] * 5, "it has 5 tables, not 4"),
        ([b"x" * 15, b"", b"", b""], "table 1 has 15 bytes, in rows of 16"),
        ([b"", b"x" * 49, b"", b""], "table 2 has 49 bytes, in rows of 48"),
        ([b"", b"", b"x", b""], "table 3 has 1 bytes, in rows of 60"),
        ([b"", b"", b"", b"x" * 57], "table 4 has 57 bytes, in rows of 56"),
    ],
)
def test_bodies_that_are_not_tables_are_refused(bodies: list[bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ProgressReport.from_bodies([memoryview(body) for body in bodies], 0)


def test_a_report_travels_as_it_is() -> None:
    sent = delta([(A, 60)], [(A, 7, 1001, -60, 50)], [(0, *TRANSACTION, A, 7, 1000, 1, 50)])
    received = ProgressReport.from_bodies(
        [memoryview(body) for body in sent.bodies()], sent.documents
    )
    assert [rows.tolist() for rows in _tables(received)] == [
        rows.tolist() for rows in _tables(sent)
    ]
    assert received.documents == sent.documents


def _tables(delta: ProgressReport) -> list[np.ndarray]:
    return [delta.journals, delta.producers, delta.commits, delta.parts]
