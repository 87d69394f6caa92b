"""What a Session's state decides: its answer to a poll, who starves, what Slices hold back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.frontier import JOURNAL_ROW, place
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.messages import Hold, Starving
from headrace.shuffle.progress_delta import PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.effects import AnswerPoll, Effect, SendAllSlices
from headrace.shuffle.session.producer_row import CommitProgress, Span
from headrace.shuffle.session.state import SessionState
from tests.shuffle.builders import source

A = place(0, 0)


def open_session(*, is_cut: bool = False, kept_rows_max: int = 1 << 18) -> SessionState:
    """Return a Session with one member, which reads one journal that ends at 1000."""
    state = SessionState(
        Sources([source(0, "a")]),
        split_evenly(1),
        Checkpoint(),
        None,
        1 << 60,
        is_cut=is_cut,
        is_limited=True,
        kept_rows_max=kept_rows_max,
    )
    info = JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(1000), 1)
    state.journals_changed(Changes([info], [], {}))
    return state


def report(state: SessionState, number: int) -> None:
    """Report one document, committed at clock `number`."""
    through = number * 10
    row = (A, 1, number, -through, through - 10, number)
    journals, producers = np.array([(A, through)], JOURNAL_ROW), np.array([row], PROGRESS_ROW)
    state.progress(0, ProgressReport(journals, producers, documents=1))


def answered_checkpoint(effects: list[Effect]) -> int | None:
    """Return the number of the checkpoint that answers a poll, which is the first effect."""
    assert isinstance(effects[0], AnswerPoll)
    return effects[0].checkpoint.number if effects[0].checkpoint else None


def starving(is_starving: bool, checkpoint: int) -> SendAllSlices:
    return SendAllSlices(Starving(is_starving, checkpoint))


def test_a_poll_is_answered_at_once_if_something_is_visible_and_nobody_starves() -> None:
    state = open_session()
    report(state, 1)
    assert state.advance() == [], "nobody asks"
    state.poll()
    effects = state.advance()
    assert (len(effects), answered_checkpoint(effects)) == (1, 1)
    assert state.advance() == []


# proves G13
def test_the_consumer_starves_from_its_poll_on_until_that_is_answered() -> None:
    state = open_session()
    state.poll()
    assert state.advance() == [starving(True, 0)]
    assert state.advance() == [], "Slices know"
    report(state, 1)
    effects = state.advance()
    assert answered_checkpoint(effects) == 1
    assert effects[1:] == [starving(False, 1)]


def test_a_poll_that_is_given_up_is_answered_with_nothing_and_starves_no_more() -> None:
    state = open_session()
    state.poll()
    assert state.give_up() == [starving(True, 0), AnswerPoll(None)]
    assert state.advance() == [starving(False, 0)]
    report(state, 1)
    assert state.advance() == [], "nobody asks"


def test_a_poll_that_is_given_up_gets_what_is_visible_by_then() -> None:
    state = open_session()
    report(state, 1)
    state.poll()
    effects = state.give_up()
    assert (len(effects), answered_checkpoint(effects)) == (1, 1)


def test_a_second_poll_is_refused_and_the_first_one_stays_open() -> None:
    state = open_session()
    state.poll()
    with pytest.raises(UsageError, match="another poll is open already"):
        state.poll()
    report(state, 1)
    assert answered_checkpoint(state.advance()) == 1
    state.poll()


def test_a_poll_is_answered_with_nothing_at_the_end_of_a_cut() -> None:
    state = open_session(is_cut=True)
    state.poll()
    assert state.advance() == [starving(True, 0)]
    state.finished(0)
    assert state.advance() == [AnswerPoll(None), starving(False, 0)]


def test_a_poll_has_the_limit_and_the_leave_to_be_empty_that_it_came_with() -> None:
    state = open_session()
    for number in (1, 2, 3):
        report(state, number)
    state.poll(2)
    [answered] = state.advance()
    assert isinstance(answered, AnswerPoll)
    assert answered.checkpoint
    assert answered.checkpoint.delta.frontier.producers["last_commit"].tolist() == [2]
    state.poll()
    assert answered_checkpoint(state.advance()) == 2
    state.progress(0, ProgressReport(np.array([(A, 50)], JOURNAL_ROW)))
    state.poll()
    assert state.give_up()[-1] == AnswerPoll(None), "nothing shows a document"
    state.poll(may_be_empty=True)
    assert answered_checkpoint(state.advance()) == 3


# proves G12
def test_slices_are_told_once_that_they_hold_a_lane_and_once_that_they_go_on() -> None:
    state = open_session(kept_rows_max=100)
    effects = []
    for number in range(1, 13):
        report(state, number)
        effects += state.advance()
    assert effects == [SendAllSlices(Hold((0,)))]
    while state.held_lanes:
        state.poll(1)
        effects = state.advance()
        assert answered_checkpoint(effects)
    assert effects[1:] == [SendAllSlices(Hold(()))]


# -- what must always hold ---------------------------------------------------------------------


def forget_a_row(state: SessionState) -> None:
    state.frontier._unseen = set()


def read_beyond_the_head(state: SessionState) -> None:
    state.frontier.places[A].through = 1001


def show_more_than_was_reported(state: SessionState) -> None:
    state.frontier.places[A].producers[1].shown = CommitProgress(99, Span(0, is_open=True))


def starve_without_a_poll(state: SessionState) -> None:
    state.is_starving = True


def hold_without_a_reason(state: SessionState) -> None:
    state._hold = Hold((0,))


def lose_count_of_rows(state: SessionState) -> None:
    state._reports._rows[0] = 0


def lose_the_reader(state: SessionState) -> None:
    state.assignment._readers.clear()


@pytest.mark.parametrize(
    "damage",
    [
        forget_a_row,
        read_beyond_the_head,
        show_more_than_was_reported,
        starve_without_a_poll,
        hold_without_a_reason,
        lose_count_of_rows,
        lose_the_reader,
    ],
)
def test_a_state_that_cannot_be_true_is_found(damage: Callable[[SessionState], None]) -> None:
    state = open_session()
    report(state, 1)
    state._fold(0)
    report(state, 2)
    state.advance()
    state.validate()
    damage(state)
    with pytest.raises(AssertionError):
        state.validate()


def test_the_head_of_a_journal_never_falls() -> None:
    state = open_session()
    state.journals_changed(Changes([], [], {JournalId(1): Offset(900)}))
    assert state.behind_bytes == 1000
    state.journals_changed(Changes([], [], {JournalId(1): Offset(1100)}))
    assert state.behind_bytes == 1100
