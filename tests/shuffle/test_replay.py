"""What is published while a Session has yet to read again what was published before it."""

from __future__ import annotations

import numpy as np

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
from headrace.shuffle.delta import PROGRESS_ROW, Delta
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.state import SessionState
from tests.shuffle.made import source

A, B = place(0, 0), place(1, 0)


# proves G7
def test_a_settled_producer_is_not_opened_again_by_a_session_that_is_behind() -> None:
    """Else the next restart would read from below what the checkpoint still knows of producers."""
    handed_out = Checkpoint(
        Frontier.from_rows(
            np.array([(A, 30)], JOURNAL_ROW),
            np.array([(A, 1, 5, -10), (A, 2, 6, -20), (A, 3, ZERO, 20)], PRODUCER_ROW),
        ),
        {JournalTag(0): JournalRef(JournalId(1), "a/0000")},
        {BindingTag(0): "a.0"},
    )
    state = SessionState(
        Sources([source(0, "a")]), split_evenly(1), Checkpoint(), handed_out, 1 << 60
    )
    journals = [
        JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(30), 3),
        JournalInfo(JournalId(2), "a/0001", Offset(0), Offset(10), 1),
    ]
    state.journals_changed(Changes(journals, [], {}))
    settled = [(A, 1, 5, -10, 0), (A, 2, 6, -20, 10)]
    state.progress(0, Delta(np.array([(A, 20)], JOURNAL_ROW), np.array(settled, PROGRESS_ROW)))
    assert state.next_checkpoint() is handed_out
    committed = Checkpoint().merge(handed_out)
    assert resumes(committed) == {A: 20}
    assert committed.frontier.producers["producer"].tolist() == [3], "the others are pruned"

    elsewhere = [(B, 4, 9, -10, 0)]
    state.progress(0, Delta(np.array([(B, 10)], JOURNAL_ROW), np.array(elsewhere, PROGRESS_ROW)))
    later = state.next_checkpoint()
    assert later is not None
    assert resumes(committed.merge(later)) == {A: 20, B: 10}


def resumes(checkpoint: Checkpoint) -> dict[int, int]:
    frontier = checkpoint.frontier
    return dict(
        zip(frontier.journals["place"].tolist(), frontier.resume_offsets().tolist(), strict=True)
    )
