"""What a Session publishes, from when on, and what it asks to be read."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.clock import ZERO, Clock
from headrace.errors import BehindRetentionError, NotFoundError
from headrace.frontier import JOURNAL_ROW, BindingTag, Frontier, JournalTag, place
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.delta import Delta
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.state import Assignments, SessionState
from tests.shuffle.made import source
from tests.shuffle.story import Story

A, B, C = 1, 2, 3
"""Journals."""
FOREVER = 1 << 60


def abc(*, members: int = 2, cohorts: tuple[int, int, int] = (0, 0, 0)) -> Story:
    sources = [source(n, name, cohort=cohorts[n]) for n, name in enumerate("abc")]
    return Story("abc", sources, members=members)


# -- transactions over several journals --------------------------------------------------------


# proves G9
def test_a_later_commit_elsewhere_does_not_show_half_of_an_earlier_one() -> None:
    """P commits A and B at 20 and C alone at 30; C is read first."""
    story = abc()
    story.write(A, 10)
    story.write(B, 11)
    hints = story.hints(20, A, B)
    story.ack(A, 20, hints=hints)
    story.write(C, 25)
    story.commit(30, C)
    assert story.next() == []
    story.ack(B, 20, hints=hints)
    assert story.next() == [(0, 10), (1, 11), (2, 25)]


# proves G9, G11
def test_another_producer_is_not_held_back() -> None:
    story = abc()
    story.write(A, 10)
    story.write(B, 11)
    hints = story.hints(20, A, B)
    story.ack(A, 20, hints=hints)
    story.outside(A, 15, producer=2)
    story.write(C, 16, producer=3)
    story.commit(17, C, producer=3)
    assert story.next() == [(0, 15), (2, 16)]
    story.ack(B, 20, hints=hints)
    assert story.next() == [(0, 10), (1, 11)]


# proves G9
def test_what_was_committed_before_the_pending_transaction_is_shown() -> None:
    story = abc()
    story.write(A, 5)
    story.commit(6, A)
    story.write(A, 10)
    story.write(B, 11)
    hints = story.hints(20, A, B)
    story.ack(A, 20, hints=hints)
    assert story.next() == [(0, 5)]
    story.ack(B, 20, hints=hints)
    assert story.next() == [(0, 10), (1, 11)]


# proves G9
def test_producers_of_one_transaction_are_shown_together_and_in_the_order_of_each() -> None:
    story = abc()
    story.write(A, 10, producer=1)
    story.write(B, 11, producer=2)
    hints = [*story.hints(20, A, producer=1), *story.hints(21, B, producer=2)]
    story.ack(A, 20, producer=1, hints=hints)
    story.write(C, 30, producer=1)
    story.commit(31, C, producer=1)
    assert story.next() == []
    story.ack(B, 21, producer=2, hints=hints)
    assert story.next() == [(0, 10), (1, 11), (2, 30)]


# proves G9
def test_cohorts_do_not_wait_for_each_other() -> None:
    story = abc(cohorts=(0, 1, 0))
    story.write(A, 10)
    story.write(B, 11)
    story.write(C, 12)
    hints = story.hints(20, A, B, C)
    story.ack(A, 20, hints=hints)
    story.ack(C, 20, hints=hints)
    assert story.next() == [(0, 10), (2, 12)]
    story.ack(B, 20, hints=hints)
    assert story.next() == [(1, 11)]


# -- hints -------------------------------------------------------------------------------------


def test_hints_to_journals_that_are_not_read_are_not_waited_for() -> None:
    story = Story("abc", [source(0, "a")])
    story.write(A, 10)
    story.write(B, 11)
    story.ack(A, 20, hints=story.hints(20, A, B))
    assert story.next() == [(0, 10)]


# proves G9
def test_a_journal_of_two_bindings_is_shown_under_both_at_once() -> None:
    for members in (1, 2, 3):
        story = Story("ab", [source(0, "a"), source(1, "a"), source(2, "b")], members=members)
        story.write(A, 10)
        story.write(B, 11)
        hints = story.hints(20, A, B)
        story.ack(A, 20, hints=hints)
        assert story.next() == []
        story.ack(B, 20, hints=hints)
        assert story.next() == [(0, 10), (1, 10), (2, 11)]


# proves G9
def test_a_journal_that_does_not_exist_yet_for_the_session_is_waited_for() -> None:
    story = abc()
    story.settle()
    story.write(A, 10)
    later = story.world.create("b")
    hints = [*story.hints(20, A), (later.id, 10, 1, 20)]
    story.ack(A, 20, hints=hints)
    known = story.run.known
    known[later.id] = later.head  # as if the watch had yet to see it
    assert story.next() == []
    assert story.waits_for() == [(1, f"journal {later.id}")]
    del known[later.id]
    story.write(later.id, 11)
    story.ack(later.id, 20, hints=hints)
    assert story.next() == [(0, 10), (1, 11)]


def test_what_is_waited_for_is_named() -> None:
    story = abc()
    story.write(A, 10)
    story.ack(A, 20, hints=[*story.hints(20, A), (B, 0, 1, 20)])
    assert story.next() == []
    assert story.waits_for() == [(1, "b/0000")]


def test_a_deleted_journal_is_not_waited_for() -> None:
    story = abc()
    story.write(A, 10)
    story.ack(A, 20, hints=[*story.hints(20, A), (B, 99, 1, 20)])
    assert story.next() == []
    story.delete(B)
    assert story.next() == [(0, 10)]


@pytest.mark.parametrize(("later", "gives_up"), [(1020, False), (1021, True)])
def test_a_hint_is_given_up_beyond_the_horizon_of_document_clocks(
    later: int, gives_up: bool
) -> None:
    story = abc()
    story.run.session._groups._horizon = 1000
    story.write(A, 10)
    story.ack(A, 20, hints=[*story.hints(20, A), (B, 999, 1, 20)])
    assert story.next() == []
    story.write(C, later - 1, producer=2)
    story.ack(C, later, producer=2, hints=[*story.hints(later, C, producer=2), (B, 999, 2, later)])
    assert story.next() == ([(0, 10)] if gives_up else [])


# -- rollbacks ---------------------------------------------------------------------------------


# proves G6
@pytest.mark.parametrize("ack", [0, 5])
def test_a_rollback_retracts_what_was_queued(ack: int) -> None:
    """`C10 C11 ACK5 C20 ACK20` shows only 20."""
    story = abc()
    story.outside(A, 5)
    assert story.next() == [(0, 5)]
    story.write(A, 10)
    story.write(A, 11)
    assert story.next() == []
    story.ack(A, ack)
    story.write(A, 20)
    story.ack(A, 20)
    assert story.next() == [(0, 20)]
    assert story.next() == []


# -- checkpoints and restarts ------------------------------------------------------------------


# proves G7
def test_a_producer_leaves_the_checkpoint_once_a_restart_can_do_without_it() -> None:
    story = abc()
    story.write(A, 10, producer=1)
    story.outside(A, 11, producer=2)
    assert story.next() == [(0, 11)]
    of_a = story.last_commit.frontier.get(JournalTag(story.tag(A)), BindingTag(0))
    assert of_a is not None
    assert of_a.producers.keys() == {1, 2}
    assert of_a.resume_offset == 0
    story.commit(12, A, producer=1)
    assert story.next() == [(0, 10)]
    of_a = story.last_commit.frontier.get(JournalTag(story.tag(A)), BindingTag(0))
    assert of_a is not None
    assert of_a.producers == {}
    story.open()
    story.outside(A, 20, producer=2)
    assert story.next() == [(0, 20)]


# proves G7, G9
def test_what_was_withheld_is_read_again_after_a_restart() -> None:
    story = abc()
    story.write(A, 10)
    story.write(B, 11)
    hints = story.hints(20, A, B)
    story.ack(A, 20, hints=hints)
    story.outside(A, 30, producer=2)
    assert story.next() == [(0, 30)]
    story.open()
    assert story.next() == []
    story.ack(B, 20, hints=hints)
    assert story.next() == [(0, 10), (1, 11)]


# proves G10
def test_read_through_is_served_when_everything_in_it_is_read_again() -> None:
    story = abc()
    story.outside(A, 10, producer=1)
    story.outside(B, 11, producer=2)
    story.settle()
    wanted = story.run.session.next_checkpoint()
    assert wanted is not None
    expected = story.shown(wanted)
    story.outside(A, 20, producer=1)
    run = story.open(wanted)
    heads = {id: journal.head for id, journal in story.world.journals.items()}
    created(run.session, *(info(id, heads[JournalId(id)]) for id in (A, B, C)))
    report(run.session, A, 0, through=10, producers=[(1, 10)])
    assert run.session.next_checkpoint() is None, "B is yet to be read"

    story.open(wanted)
    story.settle()
    replayed = story.run.session.next_checkpoint()
    assert replayed is not None
    assert replayed.encode() == wanted.encode()
    assert story.shown(replayed) == expected == [(0, 10), (1, 11)]
    story.last_commit = story.last_commit.merge(replayed)
    assert story.next() == [(0, 20)]


def info(id: int, head: int, *, begin: int = 0, name: str = "") -> JournalInfo:
    return JournalInfo(JournalId(id), name or f"{' abc'[id]}/0000", Offset(begin), Offset(head), 1)


def report(
    session: SessionState,
    journal: int,
    binding: int,
    *,
    through: int,
    producers: list[tuple[int, int]],
    documents: int = 1,
) -> None:
    """What a Slice would say of commits without hints."""
    at = place(session._tags[JournalId(journal)], binding)
    rows = [(at, producer, commit, -through, 0) for producer, commit in producers]
    dtype = Delta().producers.dtype
    delta = Delta(
        np.array([(at, through)], JOURNAL_ROW), np.array(rows, dtype), documents=documents
    )
    session.progress(session._readers[at], delta)


def session(
    last_commit: Checkpoint | None = None, read_through: Checkpoint | None = None, members: int = 1
) -> SessionState:
    sources = Sources([source(n, name) for n, name in enumerate("abc")])
    base = last_commit or Checkpoint()
    return SessionState(sources, split_evenly(members), base, read_through, FOREVER)


def created(state: SessionState, *infos: JournalInfo) -> Assignments:
    return state.journals_changed(Changes(list(infos), [], {}))


# proves G13
def test_a_replay_of_a_journal_that_is_gone_is_refused() -> None:
    story = abc()
    story.outside(A, 10)
    story.settle()
    wanted = story.run.session.next_checkpoint()
    state = session(read_through=wanted)
    assert state.next_checkpoint() is None
    created(state, info(B, 0))
    with pytest.raises(NotFoundError, match="a/0000 is not read any more"):
        state.next_checkpoint()


# -- journals ----------------------------------------------------------------------------------


def test_journals_are_started_with_their_tags_and_heads_follow() -> None:
    state = session(members=3)
    told = created(state, info(A, 70), info(B, 0), info(9, 5, name="other/0000"))
    assert told.tags == [(A, (0,)), (B, (1,))]
    starts = [start for some in told.start.values() for start in some]
    assert [(s.journal, s.name, s.binding, s.offset, s.head) for s in starts] == [
        (A, "a/0000", 0, 0, 70),
        (B, "b/0000", 1, 0, 0),
    ]
    assert created(state, info(A, 70)) == Assignments()
    grown = state.journals_changed(
        Changes([], [], {JournalId(A): Offset(90), JournalId(9): Offset(9)})
    )
    assert [head for some in grown.heads.values() for head in some] == [(place(0, 0), 90)]


def test_a_deleted_journal_is_stopped_where_it_is_read() -> None:
    state = session()
    created(state, info(A, 0))
    told = state.journals_changed(Changes([], [JournalId(A), JournalId(77)], {}))
    assert told.stop == {0: [place(0, 0)]}
    assert state.places() == 0
    late = place(0, 0)
    state.progress(0, Delta(np.array([(late, 10)], JOURNAL_ROW)))


def test_tags_are_never_used_again() -> None:
    base = Checkpoint(journals={JournalTag(4): JournalRef(JournalId(50), "a/0000")})
    newer = Checkpoint(journals={JournalTag(7): JournalRef(JournalId(51), "a/0001")})
    state = session(base, newer)
    told = created(
        state,
        info(60, 0, name="a/0000"),
        info(51, 0, name="a/0001"),
        info(61, 0, name="a/0002"),
    )
    tags = {s.journal: s.place >> 32 for some in told.start.values() for s in some}
    assert tags == {60: 8, 51: 7, 61: 9}


def test_a_delta_introduces_each_tag_once() -> None:
    story = abc()
    story.outside(A, 10)
    first = story.poll()
    assert first is not None
    assert list(first.journals.values()) == [JournalRef(JournalId(A), "a/0000")]
    assert list(first.bindings.values()) == ["a.0"]
    story.outside(A, 20)
    story.outside(B, 21)
    second = story.poll()
    assert second is not None
    assert list(second.journals.values()) == [JournalRef(JournalId(B), "b/0000")]
    assert list(second.bindings.values()) == ["b.1"]


# proves G13
def test_a_checkpoint_behind_retention_is_refused() -> None:
    story = abc()
    story.outside(A, 10)
    story.next()
    state = session(story.last_commit)
    with pytest.raises(BehindRetentionError) as refused:
        created(state, info(A, 500, begin=100))
    assert refused.value.what == (
        "a/0000: the checkpoint of binding 'a.0' goes on at 10, and retention has removed"
        " everything below 100"
    )


# -- limits, sparseness ------------------------------------------------------------------------


def test_a_limit_takes_whole_reports_and_no_more_than_needed() -> None:
    state = session()
    created(state, info(A, 10), info(B, 10), info(C, 10))
    for at, journal in enumerate((A, B, C)):
        report(state, journal, at, through=10, producers=[(1 + at, 50)], documents=10)
    first = state.next_checkpoint(11)
    assert first is not None
    assert first.frontier.producers["producer"].tolist() == [1, 2]
    second = state.next_checkpoint(1)
    assert second is not None
    assert second.frontier.producers["producer"].tolist() == [3]
    assert state.next_checkpoint(1) is None


def test_a_checkpoint_has_only_what_moved() -> None:
    story = abc()
    story.outside(A, 10)
    story.outside(B, 11)
    story.next()
    story.outside(B, 20)
    delta = story.poll()
    assert delta is not None
    assert delta.frontier.journals.tolist() == [(place(story.tag(B), 1), 20)]
    assert [row[1:3] for row in delta.frontier.producers.tolist()] == [(1, 20)]
    assert story.poll() is None


def test_an_open_transaction_alone_moves_where_reading_goes_on() -> None:
    story = abc()
    story.write(A, 10)
    story.outside(A, 11, producer=2)
    delta = story.poll()
    assert delta is not None
    rows = {row[1]: row[2:] for row in delta.frontier.producers.tolist()}
    assert rows == {1: (ZERO, 0), 2: (Clock(11), -20)}
    assert delta.frontier.resume_offsets().tolist() == [0]
    assert isinstance(delta.frontier, Frontier)
