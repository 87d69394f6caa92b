"""What a Session publishes until it has read again what the Session before it published."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.clock import ZERO
from headrace.frontier import (
    JOURNAL_ROW,
    PRODUCER_ROW,
    BindingTag,
    Frontier,
    JournalTag,
    place,
)
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.producer_row import ProducerRow, Publishable
from headrace.shuffle.session.state import SessionState
from tests.shuffle.builders import source

A, B = place(0, 0), place(1, 0)
P, Q = 1, 2


# proves G7
def test_a_settled_producer_is_not_opened_again_by_a_session_that_is_behind() -> None:
    """Otherwise the next restart would read offsets for which the checkpoint has no producers."""
    handed_out = checkpoint_of([(A, P, 5, -10), (A, Q, 6, -20), (A, 3, ZERO, 20)], through=30)
    state = resume_session(Checkpoint(), handed_out)
    report(state, 20, [(A, P, 5, -10, 0), (A, Q, 6, -20, 10)])
    assert state.next_checkpoint() is handed_out
    committed = Checkpoint().merge(handed_out)
    assert resume_offsets(committed) == {A: 20}
    assert committed.frontier.producers["producer"].tolist() == [3], "the others are pruned"

    elsewhere = [(B, 4, 9, -10, 0, 9)]
    state.progress(
        0, ProgressReport(np.array([(B, 10)], JOURNAL_ROW), np.array(elsewhere, PROGRESS_ROW))
    )
    later = state.next_checkpoint(may_be_empty=True)
    assert later is not None
    assert resume_offsets(committed.merge(later)) == {A: 20, B: 10}


def test_a_span_that_ended_below_what_was_read_is_closed_once_all_is_read_again() -> None:
    """The last checkpoint had read to 30; this Session begins at 12, and P's span ends at 20."""
    last = checkpoint_of([(A, P, 5, 12)], through=30)
    state = resume_session(last)
    report(state, 20, [(A, P, 9, -20, 12)])
    assert next_rows(state) == [(A, P, 9, 20)], "of P more may be open between 20 and 30"
    report(state, 30, [])
    assert next_rows(state) == [(A, P, ZERO, -30)], "nothing is: a restart begins at the end"


def test_what_is_behind_is_looked_at_again_when_it_has_caught_up_and_not_before() -> None:
    """Otherwise the cost of many journals that are behind would grow with their number squared."""
    state = resume_session(checkpoint_of([(A, P, 5, 12)], through=30))
    looked_at: list[int] = []
    publishable = state.frontier._publishable

    def counted(row: ProducerRow) -> Publishable:
        looked_at.append(row.place.place)
        return publishable(row)

    state.frontier._publishable = counted  # type: ignore[method-assign]
    report(state, 20, [(A, P, 9, -20, 12)])
    state.next_checkpoint(may_be_empty=True)
    for through in range(1, 10):
        elsewhere = np.array([(B, Q, through, -through, -1, 0)], PROGRESS_ROW)
        state.progress(0, ProgressReport(np.array([(B, through)], JOURNAL_ROW), elsewhere))
        state.next_checkpoint(may_be_empty=True)
    assert looked_at.count(A) == 1
    report(state, 30, [])
    state.next_checkpoint(may_be_empty=True)
    assert looked_at.count(A) == 2


@pytest.mark.parametrize(
    ("before", "through", "span"),
    [
        pytest.param(12, 40, 12, id="still open"),
        pytest.param(25, 20, -20, id="open in what is yet to be read again"),
        pytest.param(-20, 40, -20, id="closed before"),
    ],
)
def test_a_span_that_did_not_move_is_not_published_again(
    before: int, through: int, span: int
) -> None:
    state = resume_session(checkpoint_of([(A, P, 5, before), (A, Q, ZERO, 12)], through=30))
    report(state, through, [(A, P, 5, span, -1)])
    assert next_rows(state) == []


# proves G5, G7
def test_what_is_withheld_after_a_restart_is_read_again_by_the_next_one() -> None:
    """A Slice reads P's commits up to 8 again; the next transaction waits for an ACK elsewhere."""
    last = checkpoint_of([(A, P, 8, -20), (A, Q, ZERO, 12)], through=30)
    state = resume_session(last)
    withhold(state, 40, clock=9, since=15, waits_for=5)
    assert next_rows(state) == [(A, P, ZERO, 30)], "what is withheld stands above 30"


def test_what_was_withheld_and_is_shown_is_not_read_again_for_what_is_withheld_later() -> None:
    state = resume_session(Checkpoint())
    withhold(state, 40, clock=9, since=15, waits_for=5)
    assert next_rows(state) == [(A, P, 8, 15)], "just below its first document"
    state.progress(0, ProgressReport(np.array([(B, 10)], JOURNAL_ROW)))
    assert next_rows(state) == [(A, P, 9, -40)]
    withhold(state, 60, clock=19, since=50, waits_for=10)
    assert next_rows(state) == [(A, P, 18, 50)]


# proves G9, G13
def test_what_was_withheld_is_shown_though_a_checkpoint_was_handed_out_meanwhile() -> None:
    state = resume_session(Checkpoint())
    withhold(state, 40, clock=9, since=15, waits_for=5)
    rows = np.array([(A, Q, 3, -50, 40, 3)], PROGRESS_ROW)
    state.progress(0, ProgressReport(np.array([(A, 50)], JOURNAL_ROW), rows, documents=1))
    shown = state.next_checkpoint()
    assert shown is not None, "it shows what Q committed"
    assert state.next_checkpoint() is None
    state.progress(0, ProgressReport(np.array([(B, 10)], JOURNAL_ROW)))
    completed = state.next_checkpoint()
    assert completed is not None, "it shows what P committed, which no later report counts"
    assert completed.frontier.producers.tolist() == [(A, P, 9, -40)]


def test_what_a_replay_repeated_is_not_published_again() -> None:
    last = checkpoint_of([(A, P, 5, -10)], through=10)
    handed_out = checkpoint_of([(A, P, ZERO, 20)], through=30)
    state = resume_session(last, handed_out)
    report(state, 30, [(A, P, 5, 20, -1)])
    assert state.next_checkpoint() is handed_out
    assert state.assignment.last_checkpoint == 1
    report(state, 40, [(A, P, 5, -40, -1)])
    later = state.next_checkpoint(may_be_empty=True)
    assert later is not None
    assert later.frontier.producers.tolist() == [(A, P, ZERO, -40)]
    assert (later.journals, later.bindings) == ({}, {}), "the replay has introduced them"


# proves G10
def test_a_replay_without_any_commit_is_handed_out_before_journals_are_listed() -> None:
    wanted = checkpoint_of([(A, P, ZERO, 20)], through=30)
    state = SessionState(Sources([source(0, "a")]), split_evenly(1), Checkpoint(), wanted, 1 << 60)
    assert state.next_checkpoint() is wanted
    state.journals_changed(
        Changes([JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(60), 3)], [], {})
    )
    report(state, 60, [(A, P, 9, -60, 20)])
    assert next_rows(state) == [(A, P, 9, -60)]
    state.advance()
    state.validate()


def checkpoint_of(producers: list[tuple[int, int, int, int]], *, through: int) -> Checkpoint:
    return Checkpoint(
        Frontier.from_rows(
            np.array([(A, through)], JOURNAL_ROW), np.array(producers, PRODUCER_ROW)
        ),
        {JournalTag(0): JournalRef(JournalId(1), "a/0000")},
        {BindingTag(0): "a.0"},
    )


def resume_session(last: Checkpoint, handed_out: Checkpoint | None = None) -> SessionState:
    state = SessionState(Sources([source(0, "a")]), split_evenly(1), last, handed_out, 1 << 60)
    journals = [
        JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(60), 3),
        JournalInfo(JournalId(2), "a/0001", Offset(0), Offset(10), 1),
    ]
    state.journals_changed(Changes(journals, [], {}))
    return state


def report(state: SessionState, through: int, rows: list[tuple[int, ...]]) -> None:
    # Every row has committed one span, or none.
    rows = [(*row, row[2] if row[4] >= 0 else 0) for row in rows]
    state.progress(
        0, ProgressReport(np.array([(A, through)], JOURNAL_ROW), np.array(rows, PROGRESS_ROW))
    )


def withhold(state: SessionState, through: int, *, clock: int, since: int, waits_for: int) -> None:
    """Report that P committed a span from `since` on in A, and waits for an ACK in B."""
    delta = ProgressReport(
        np.array([(A, through)], JOURNAL_ROW),
        np.array([(A, P, clock, -through, since, clock)], PROGRESS_ROW),
        np.array([(0, P, clock, A, P, clock, clock, 0)], COMMIT_ROW),
        np.array([(0, P, clock, 2, 0, P, clock, waits_for)], PART_ROW),
        1,
    )
    state.progress(0, delta)


def next_rows(state: SessionState) -> list[tuple[int, int, int, int]]:
    delta = state.next_checkpoint(may_be_empty=True)
    return delta.frontier.producers.tolist() if delta else []


def resume_offsets(checkpoint: Checkpoint) -> dict[int, int]:
    frontier = checkpoint.frontier
    return dict(
        zip(frontier.journals["place"].tolist(), frontier.resume_offsets().tolist(), strict=True)
    )
