"""What a Session publishes, when it does, and what it has Slices read."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.clock import ZERO, Clock
from headrace.errors import BehindRetentionError, NotFoundError, ProtocolError, UsageError
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
from headrace.journal.names import Selector
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.messages import Heads, ReadStart, StartRead, StopRead, Tags
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.effects import Effect, SendAllSlices, SendSlice
from headrace.shuffle.session.state import SessionState
from headrace.testing.shuffle import memory_run
from tests.shuffle.builders import Hint, source
from tests.shuffle.memory_session import MemorySession

A, B, C = 1, 2, 3
"""Ids of journals."""
FOREVER = 1 << 60


def abc(*, members: int = 2, cohorts: tuple[int, int, int] = (0, 0, 0)) -> MemorySession:
    sources = [source(n, name, cohort=cohorts[n]) for n, name in enumerate("abc")]
    return MemorySession("abc", sources, members=members)


# -- transactions over several journals --------------------------------------------------------


# proves G9
def test_a_later_commit_elsewhere_does_not_show_half_of_an_earlier_one() -> None:
    """P commits A and B at 20 and C alone at 30. A Slice reads C first."""
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
def test_producers_that_one_slice_reads_are_shown_together_too() -> None:
    """One member reads all. The first transaction holds back the second one's first producer."""
    story = abc(members=1)
    story.write(A, 10)
    story.write(B, 11)
    first = story.hints(20, A, B)
    story.ack(A, 20, hints=first)
    story.write(A, 30, producer=1)
    story.write(C, 31, producer=2)
    second = [*story.hints(32, A, producer=1), *story.hints(33, C, producer=2)]
    story.ack(A, 32, producer=1, hints=second)
    story.ack(C, 33, producer=2, hints=second)
    assert story.next() == []
    story.ack(B, 20, hints=first)
    assert story.next() == [(0, 10), (0, 30), (1, 11), (2, 31)]


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
    story = MemorySession("abc", [source(0, "a")])
    story.write(A, 10)
    story.write(B, 11)
    story.ack(A, 20, hints=story.hints(20, A, B))
    assert story.next() == [(0, 10)]


# proves G9
def test_a_journal_of_two_bindings_is_shown_under_both_at_once() -> None:
    for members in (1, 2, 3):
        story = MemorySession(
            "ab", [source(0, "a"), source(1, "a"), source(2, "b")], members=members
        )
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
    later = story.world.create_journal("b")
    hints = [*story.hints(20, A), (later.id, 10, 1, 20)]
    story.ack(A, 20, hints=hints)
    known = story.run.known_heads
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


# proves G9
@pytest.mark.parametrize(
    ("journal", "later", "gives_up"), [(A, 1020, False), (A, 1021, True), (C, 1 << 50, False)]
)
def test_a_hint_to_an_ack_that_is_nowhere_is_given_up_beyond_the_horizon(
    journal: int, later: int, gives_up: bool
) -> None:
    """Documents of the journal that has the hint show how far clocks are; others do not."""
    story = abc()
    story.run.session.frontier.pending._horizon = 1000
    story.write(A, 10)
    story.ack(A, 20, hints=[*story.hints(20, A), (B, 999, 1, 20)])
    assert story.next() == []
    assert list(story.run.session.waiting_for()) == [(1, "b/0000")]
    story.outside(journal, later, producer=2)
    shown = [(journal - 1, later)]
    assert story.next() == ([(0, 10), *shown] if gives_up else shown)


def wait_in_vain(monkeypatch: pytest.MonkeyPatch) -> MemorySession:
    """Return a Session: P's transaction in A names an ACK that B never gets; P goes on in C."""
    monkeypatch.setattr(memory_run, "HORIZON", 1000)
    story = abc()
    story.write(A, 10)
    story.ack(A, 20, hints=[*story.hints(20, A), (B, 999, 1, 20)])
    story.write(C, 30)
    story.commit(31, C)
    assert story.next() == []
    return story


# proves G9, G13
@pytest.mark.parametrize("restarts", [False, True])
def test_a_hint_is_given_up_though_the_journal_that_named_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """The journal that should have the ACK goes on."""
    story = wait_in_vain(monkeypatch)
    story.outside(B, 1020, producer=3)
    assert story.next() == [(1, 1020)], "that is not beyond the horizon"
    if restarts:
        story.open()
    story.outside(B, 1021, producer=3)
    assert story.next() == [(0, 10), (1, 1021), (2, 30)]
    assert story.waits_for() == []


# proves G9, G13
def test_a_hint_is_given_up_when_its_producer_is_beyond_the_horizon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = wait_in_vain(monkeypatch)
    story.outside(C, 1 << 50, producer=2)
    assert story.next() == [(2, 1 << 50)], "that has nothing to do with the transaction"
    story.write(C, 1020)
    story.commit(1021, C)
    assert story.next() == [(0, 10), (2, 30), (2, 1020)]


# proves G9, G13
def test_nothing_waits_for_a_transaction_whose_journals_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Slice that reads another of its ACKs reports again what the transaction waits for."""
    story = wait_in_vain(monkeypatch)
    story.delete(A)
    assert story.next() == [(2, 30)]
    assert story.waits_for() == []
    assert len(story.run.session.frontier.pending) == 0


# proves G9
@pytest.mark.parametrize("is_folded", [False, True])
def test_a_transaction_of_a_deleted_journal_and_two_others_is_shown_in_one_checkpoint(
    is_folded: bool,
) -> None:
    story = abc()
    for journal in (A, B, C):
        story.write(journal, 10 + journal)
    hints = story.hints(20, A, B, C)
    story.ack(A, 20, hints=hints)
    story.settle()
    if is_folded:
        assert story.next() == []
    story.delete(A)
    assert story.next() == []
    story.ack(C, 20, hints=hints)
    assert story.next() == []
    story.ack(B, 20, hints=hints)
    assert story.next() == [(1, 12), (2, 13)]


# proves G9, G13
def test_after_a_restart_the_checkpoint_tells_how_far_clocks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal that has the hint got nothing new."""
    story = wait_in_vain(monkeypatch)
    story.run.session.frontier.pending._horizon = FOREVER
    story.outside(A, 5000, producer=2)
    assert story.next() == [(0, 5000)]
    story.open()
    assert story.next() == [(0, 10), (2, 30)]


# proves G9
def test_an_ack_that_is_yet_to_be_read_is_waited_for_however_old_it_is() -> None:
    """One Slice reads today's documents while another reads those of last year."""
    state = session()
    state.frontier.pending._horizon = 1000
    create_journals(state, journal_info(A, 100), journal_info(B, 100), journal_info(C, 0))
    transaction = 0, 1, 20
    report(
        state,
        A,
        0,
        through=100,
        producers=[(1, 20), (2, 1 << 50)],
        commits=[(*transaction, place(0, 0), 1, 20, 10, 0)],
        parts=[(*transaction, B, 1, 1, 20, 40)],
    )
    assert shown_commits(state) == {(place(0, 0), 1): 9, (place(0, 0), 2): 1 << 50}
    report(state, B, 1, through=40, producers=[(3, 1 << 51)])
    assert shown_commits(state) == {(place(1, 1), 3): 1 << 51}
    report(state, B, 1, through=50, producers=[(1, 20)])
    assert shown_commits(state) == {(place(0, 0), 1): 20, (place(1, 1), 1): 20}


# proves G9
def test_what_was_published_never_goes_back() -> None:
    """Checkpoints show P up to 30 in A; then its transactions at 20 and 26 prove to be pending."""
    base = Checkpoint(
        Frontier.from_rows(
            np.array([(place(0, 0), 100)], JOURNAL_ROW),
            np.array([(place(0, 0), 1, 30, -100)], PRODUCER_ROW),
        ),
        {JournalTag(0): JournalRef(JournalId(A), "a/0000")},
        {BindingTag(n): f"{name}.{n}" for n, name in enumerate("abc")},
    )
    state = session(base)
    create_journals(state, journal_info(A, 500), journal_info(B, 500), journal_info(C, 500))
    for clock, offset in ((20, 10), (26, 30)):
        report(
            state,
            B,
            1,
            through=clock * 10,
            producers=[(1, clock)],
            commits=[(0, 1, clock, place(1, 1), 1, clock, clock, 0)],
            parts=[(0, 1, clock, C, 2, 1, clock, offset)],
        )
    report(state, A, 0, through=200, producers=[(1, 40)])
    assert shown_commits(state) == {(place(1, 1), 1): 19}, "A stays at 30"
    report(state, C, 2, through=20, producers=[(1, 20)])
    assert shown_commits(state) == {(place(1, 1), 1): 25, (place(2, 2), 1): 20}, "A stays at 30"
    report(state, C, 2, through=40, producers=[(1, 26)])
    assert shown_commits(state)[place(0, 0), 1] == 40


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


# proves G6, G7
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("others", [False, True], ids=["pruned", "kept without its commit"])
def test_a_rollback_to_a_commit_that_the_checkpoint_does_not_know_any_more(
    restarts: bool, others: bool
) -> None:
    """`C10 ACK12`, restart, `C20 ACK12`: the ACK repeats the last commit."""
    story = abc()
    story.write(A, 10)
    story.ack(A, 12)
    assert story.next() == [(0, 10)]
    if others:
        story.write(A, 20)
        story.outside(A, 15, producer=3)
        assert story.next() == [(0, 15)]
    if restarts:
        story.open()
    if not others:
        story.write(A, 20)
    story.ack(A, 12)
    story.outside(A, 21, producer=2)
    assert story.next() == [(0, 21)]
    story.write(A, 30)
    story.ack(A, 31)
    assert story.next() == [(0, 30)]


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


# proves G5, G7
def test_all_that_was_withheld_is_read_again_after_a_restart() -> None:
    """Two transactions of P in A wait for an ACK in B. A restart begins at the first one."""
    story = abc()
    story.outside(A, 5, producer=3)
    assert story.next() == [(0, 5)]
    story.write(A, 10)
    story.write(B, 11)
    hints = story.hints(20, A, B)
    story.ack(A, 20, hints=hints)
    story.outside(A, 21, producer=3)
    assert story.next() == [(0, 21)]
    story.write(A, 30)
    story.ack(A, 40)
    story.outside(A, 41, producer=3)
    assert story.next() == [(0, 41)]
    story.open()
    assert story.next() == []
    story.ack(B, 20, hints=hints)
    assert story.next() == [(0, 10), (0, 30), (1, 11)]


# proves G7
@pytest.mark.parametrize("alone", [False, True], ids=["each transaction", "and one in A alone"])
@pytest.mark.parametrize("polled_every", [1, 3])
def test_a_restart_reads_from_the_oldest_pending_transaction_on(
    polled_every: int, alone: bool
) -> None:
    """At every poll P is one transaction ahead in A. Checkpoints have shown all others."""
    story = abc()
    late: tuple[int, list[Hint]] | None = None
    shown: list[tuple[int, int]] = []
    for number in range(1, 31):
        clock, begin = 10 * number, story.journal(A).head
        story.write(A, clock)
        if late:
            story.ack(B, late[0], hints=late[1])
        story.write(B, clock + 1)
        hints = story.hints(clock + 2, A, B)
        story.ack(A, clock + 2, hints=hints)
        late = clock + 2, hints
        if alone:
            story.write(A, clock + 3)
            story.ack(A, clock + 4)
        story.settle()
        if number % polled_every:
            continue
        shown += story.next()
        entry = story.last_commit.frontier.get(JournalTag(story.tag(A)), BindingTag(0))
        # There is no checkpoint before one shows a document.
        assert entry is not None or number == 1
        assert (entry.resume_offset if entry else 0) == begin
        if number % 5 == 0:
            story.open()
    assert late
    story.ack(B, late[0], hints=late[1])
    shown += story.next()
    wanted = [10 * n + more for n in range(1, 31) for more in ((0, 3) if alone else (0,))]
    assert [clock for binding, clock in shown if binding == 0] == wanted


# proves G9, G10
def test_what_a_replay_shows_of_a_transaction_does_not_wait_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint gave up the ACK in B. The Session that replays it would wait for B forever."""
    monkeypatch.setattr(memory_run, "HORIZON", 1000)
    story = abc()
    story.write(A, 10)
    story.write(B, 11)
    story.outside(B, 12, producer=7)
    story.ack(A, 20, hints=story.hints(20, A, B))
    assert story.next() == [(1, 12)]
    story.outside(A, 5000, producer=9)
    base = story.last_commit
    story.settle()
    handed_out = story.run.session.next_checkpoint()
    assert handed_out is not None
    monkeypatch.setattr(memory_run, "HORIZON", FOREVER)
    story.last_commit = base
    story.open(read_through=handed_out)
    assert story.next() == [(0, 10), (0, 5000)]
    story.write(A, 6000)
    story.commit(6001, A)
    assert story.next() == [(0, 6000)]
    assert story.waits_for() == []


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
    create_journals(run.session, *(journal_info(id, heads[JournalId(id)]) for id in (A, B, C)))
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


def journal_info(id: int, head: int, *, begin: int = 0, name: str = "") -> JournalInfo:
    return JournalInfo(JournalId(id), name or f"{' abc'[id]}/0000", Offset(begin), Offset(head), 1)


def report(
    session: SessionState,
    journal: int,
    binding: int,
    *,
    through: int,
    producers: list[tuple[int, int]] | None = None,
    commits: list[tuple[int, ...]] | None = None,
    parts: list[tuple[int, ...]] | None = None,
    documents: int = 1,
) -> None:
    """Report as a Slice would: `producers` are pairs of a producer and its commit."""
    key = place(session.assignment._tags[JournalId(journal)], binding)
    rows = [(key, producer, commit, -through, 0, commit) for producer, commit in producers or []]
    delta = ProgressReport(
        np.array([(key, through)], JOURNAL_ROW),
        np.array(rows, PROGRESS_ROW),
        np.array(commits or [], COMMIT_ROW),
        np.array(parts or [], PART_ROW),
        documents,
    )
    session.progress(session.assignment._readers[key], delta)


def shown_commits(
    state: SessionState, documents_max: int | None = None
) -> dict[tuple[int, int], int]:
    """Return the commits that moved in the next checkpoint, by place and producer."""
    delta = state.next_checkpoint(documents_max, may_be_empty=True)
    rows = delta.frontier.producers.tolist() if delta else []
    return {(key, producer): commit for key, producer, commit, _ in rows if commit}


def session(
    last_commit: Checkpoint | None = None,
    read_through: Checkpoint | None = None,
    members: int = 1,
    **kept: int,
) -> SessionState:
    sources = Sources([source(n, name) for n, name in enumerate("abc")])
    base = last_commit or Checkpoint()
    tiles = split_evenly(members)
    return SessionState(sources, tiles, base, read_through, FOREVER, **kept)  # type: ignore[arg-type]


def create_journals(state: SessionState, *infos: JournalInfo) -> list[Effect]:
    return state.journals_changed(Changes(list(infos), [], {}))


def read_starts(effects: list[Effect]) -> list[ReadStart]:
    """Return the reads that Slices have to start."""
    sent = [effect.message for effect in effects if isinstance(effect, SendSlice)]
    return [start for message in sent if isinstance(message, StartRead) for start in message.reads]


# proves G13
def test_a_replay_of_a_journal_that_is_gone_is_refused() -> None:
    story = abc()
    story.outside(A, 10)
    story.settle()
    wanted = story.run.session.next_checkpoint()
    state = session(read_through=wanted)
    assert state.next_checkpoint() is None
    create_journals(state, journal_info(B, 0))
    with pytest.raises(NotFoundError, match="a/0000 is not read any more"):
        state.next_checkpoint()


# -- journals ----------------------------------------------------------------------------------


def test_journals_are_started_with_their_tags_and_heads_follow() -> None:
    state = session(members=3)
    effects = create_journals(
        state, journal_info(A, 70), journal_info(B, 0), journal_info(9, 5, name="other/0000")
    )
    assert effects[0] == SendAllSlices(Tags([(A, (0,)), (B, (1,))]))
    assert [e.member for e in effects[1:] if isinstance(e, SendSlice)] == [0, 1, 2]
    assert [(s.place, s.journal, s.name, s.offset, s.head) for s in read_starts(effects)] == [
        (place(0, 0), A, "a/0000", 0, 70),
        (place(1, 1), B, "b/0000", 0, 0),
    ]
    assert create_journals(state, journal_info(A, 70)) == []
    grown = state.journals_changed(
        Changes([], [], {JournalId(A): Offset(90), JournalId(9): Offset(9)})
    )
    [sent] = grown
    assert isinstance(sent, SendSlice)
    assert sent.message == Heads([(place(0, 0), Offset(90))])


def test_a_deleted_journal_is_stopped_where_it_is_read() -> None:
    state = session()
    create_journals(state, journal_info(A, 0))
    effects = state.journals_changed(Changes([], [JournalId(A), JournalId(77)], {}))
    assert effects == [SendSlice(0, StopRead([place(0, 0)], 0))]
    assert len(state.assignment) == 0
    late = place(0, 0)
    state.progress(0, ProgressReport(np.array([(late, 10)], JOURNAL_ROW)))


def test_tags_are_never_used_again() -> None:
    base = Checkpoint(journals={JournalTag(4): JournalRef(JournalId(50), "a/0000")})
    newer = Checkpoint(journals={JournalTag(7): JournalRef(JournalId(51), "a/0001")})
    state = session(base, newer)
    effects = create_journals(
        state,
        journal_info(60, 0, name="a/0000"),
        journal_info(51, 0, name="a/0001"),
        journal_info(61, 0, name="a/0002"),
    )
    tags = {start.journal: start.place >> 32 for start in read_starts(effects)}
    assert tags == {60: 8, 51: 7, 61: 9}


def test_a_checkpoint_keeps_nothing_of_a_journal_that_is_gone_but_its_tag() -> None:
    story = abc()
    for journal, clock in ((A, 10), (B, 11), (C, 12)):
        story.outside(journal, clock)
    story.next()
    last = max(tag for tag in story.last_commit.journals)
    [gone] = [ref.id for tag, ref in story.last_commit.journals.items() if tag == last]
    stays = next(journal for journal in (A, B) if journal != gone)
    story.delete(gone)
    story.outside(stays, 20)
    story.next()
    kept = story.last_commit
    assert last not in kept.journals
    assert len(kept.journals) == len(kept.frontier.journals) == 2
    again = session(Checkpoint.decode(kept.encode()))
    [start] = read_starts(create_journals(again, journal_info(60, 0, name="a/0001")))
    assert start.place >> 32 == last + 1, "a tag is never used again"


@pytest.mark.parametrize("binding", [0, 7])
def test_a_journal_that_was_deleted_between_sessions_leaves_the_checkpoint(binding: int) -> None:
    """It stays if a binding has read it that the task does not have now: it may come back."""
    base = Checkpoint(
        Frontier.from_rows(
            np.array([(place(0, 0), 10), (place(1, binding), 10)], JOURNAL_ROW),
            np.zeros(0, PRODUCER_ROW),
        ),
        {JournalTag(n): JournalRef(JournalId(A + n), f"a/000{n}") for n in (0, 1)},
        {BindingTag(n): f"a.{n}" for n in (0, 7)},
    )
    state = SessionState(Sources([source(0, "a")]), split_evenly(1), base, None, FOREVER)
    create_journals(state, journal_info(A, 100))
    report(state, A, 0, through=100, producers=[(1, 20)])
    delta = state.next_checkpoint()
    assert delta is not None
    assert delta.gone == ({JournalTag(1)} if binding == 0 else set())


# proves G7
def test_progress_of_a_journal_that_is_not_selected_any_more_is_kept() -> None:
    """Nobody watches it, so the Session cannot know if it is gone. The selector may come back."""
    base = checkpoint_of((A, "a/x=1/0000"), (B, "a/x=2/0000"))
    only = replace(source(0, "a"), selector=Selector("a", {"x": ("1",)}))
    state = SessionState(Sources([only]), split_evenly(1), base, None, FOREVER)
    create_journals(state, journal_info(A, 100, name="a/x=1/0000"))
    report(state, A, 0, through=100, producers=[(1, 20)])
    delta = state.next_checkpoint()
    assert delta is not None
    assert delta.gone == set()
    state = SessionState(Sources([source(0, "a")]), split_evenly(1), base, None, FOREVER)
    effects = create_journals(state, journal_info(B, 100, name="a/x=2/0000"))
    assert [start.offset for start in read_starts(effects)] == [10]


# proves G9
@pytest.mark.parametrize("folded", [False, True])
def test_what_was_read_of_a_journal_and_is_in_no_checkpoint_goes_with_it(folded: bool) -> None:
    """That holds on all members, wherever its documents are."""
    state = session()
    create_journals(state, journal_info(A, 100), journal_info(B, 100))
    if folded:
        report(state, B, 1, through=50, producers=[(2, 10)])
        assert state.next_checkpoint() is not None
    report(state, A, 0, through=100, producers=[(1, 20)])
    effects = state.journals_changed(Changes([], [JournalId(A)], {}))
    assert effects == [SendSlice(0, StopRead([place(0, 0)], int(folded)))]
    assert state.next_checkpoint() is None
    report(state, B, 1, through=100, producers=[(2, 20)])
    delta = state.next_checkpoint()
    assert delta is not None
    assert delta.frontier.journals["place"].tolist() == [place(1, 1)]
    assert [row[:3] for row in delta.frontier.producers.tolist()] == [(place(1, 1), 2, 20)]
    assert delta.gone == {JournalTag(0)}


def test_a_delta_introduces_each_tag_once() -> None:
    story = abc()
    story.outside(A, 10)
    first = story.poll()
    assert first is not None
    assert list(first.journals.values()) == [JournalRef(JournalId(A), "a/0000")]
    assert sorted(first.bindings.values()) == ["a.0", "b.1", "c.2"]
    story.outside(A, 20)
    story.outside(B, 21)
    second = story.poll()
    assert second is not None
    assert list(second.journals.values()) == [JournalRef(JournalId(B), "b/0000")]
    assert not second.bindings


# proves G13
def test_a_checkpoint_behind_retention_is_refused() -> None:
    story = abc()
    story.outside(A, 10)
    story.next()
    state = session(story.last_commit)
    with pytest.raises(BehindRetentionError) as refused:
        create_journals(state, journal_info(A, 500, begin=100))
    assert refused.value.what == (
        "a/0000: the checkpoint of binding 'a.0' goes on at 10, and retention has removed"
        " everything below 100"
    )


def checkpoint_of(*journals: tuple[int, str]) -> Checkpoint:
    """Return the checkpoint of a task that has read ten bytes of each of these journals."""
    return Checkpoint(
        Frontier.from_rows(
            np.array([(place(tag, 0), 10) for tag, _ in enumerate(journals)], JOURNAL_ROW),
            np.zeros(0, PRODUCER_ROW),
        ),
        {
            JournalTag(tag): JournalRef(JournalId(id), name)
            for tag, (id, name) in enumerate(journals)
        },
        {BindingTag(n): f"{name}.{n}" for n, name in enumerate("abc")},
    )


# proves G13
def test_a_journal_that_comes_to_be_is_read_from_its_first_document_or_not_at_all() -> None:
    state = session()
    create_journals(state, journal_info(A, 0))
    with pytest.raises(BehindRetentionError, match=r"a/0001: the checkpoint .* goes on at 0"):
        create_journals(state, journal_info(B, 9000, begin=5000, name="a/0001"))


def test_what_retention_removed_of_a_journal_before_it_was_ever_read_is_a_gap() -> None:
    state = session(checkpoint_of((A, "a/0000")))
    with pytest.raises(BehindRetentionError, match=r"b/0000: .* goes on at 0"):
        create_journals(state, journal_info(A, 100), journal_info(B, 50, begin=20))


def test_a_task_begins_with_what_retention_has_left_and_knows_it_afterwards() -> None:
    state = session()
    create_journals(state, journal_info(A, 100), journal_info(B, 50, begin=20))
    delta = state.next_checkpoint()
    assert delta is not None
    assert delta.frontier.journals.tolist() == [(place(1, 1), 20)]
    again = session(Checkpoint().merge(delta))
    effects = create_journals(again, journal_info(A, 100), journal_info(B, 50, begin=20))
    starts = {start.journal: start.offset for start in read_starts(effects)}
    assert starts == {A: 0, B: 20}
    with pytest.raises(BehindRetentionError, match="goes on at 20"):
        create_journals(session(Checkpoint().merge(delta)), journal_info(B, 50, begin=30))


# proves G13
@pytest.mark.parametrize(
    ("found", "why"),
    [
        (("b/0000", 100), "what it knows as a/0000 is b/0000 here"),
        (("a/0000", 9), "it goes on at 10 of a/0000, which ends at 9"),
    ],
)
def test_a_checkpoint_of_another_workspace_is_refused(found: tuple[str, int], why: str) -> None:
    name, head = found
    with pytest.raises(UsageError, match=why):
        create_journals(session(checkpoint_of((A, "a/0000"))), journal_info(A, head, name=name))


# proves G7
def test_producers_of_places_with_great_tags_stand_where_they_stood() -> None:
    tag = JournalTag(3_000_001)
    base = Checkpoint(
        Frontier.from_rows(
            np.array([(place(tag, binding), 10) for binding in (0, 1)], JOURNAL_ROW),
            np.array([(place(tag, n), 7 + n, 30 + n, -10) for n in (0, 1)], PRODUCER_ROW),
        ),
        {tag: JournalRef(JournalId(A), "a/0000")},
        {BindingTag(0): "a.0", BindingTag(1): "a.1"},
    )
    sources = Sources([source(0, "a"), source(1, "a")])
    state = SessionState(sources, split_evenly(1), base, None, FOREVER)
    effects = create_journals(state, journal_info(A, 100))
    assert [start.producers for start in read_starts(effects)] == [((7, 30),), ((8, 31),)]


# -- limits, sparseness ------------------------------------------------------------------------


def test_a_limit_takes_whole_reports_and_at_least_one() -> None:
    state = session()
    create_journals(state, journal_info(A, 10), journal_info(B, 10), journal_info(C, 10))
    for at, journal in enumerate((A, B, C)):
        report(state, journal, at, through=10, producers=[(1 + at, 50)], documents=10)
    first = state.next_checkpoint(29)
    assert first is not None
    assert first.frontier.producers["producer"].tolist() == [1, 2]
    second = state.next_checkpoint(1)
    assert second is not None
    assert second.frontier.producers["producer"].tolist() == [3]
    assert state.next_checkpoint(1) is None


HIGH, LOW = 0, 1
"""Lanes of the higher and of the lower priority."""


def two_priorities(**kept: int) -> SessionState:
    """Return a Session in which `a` has the higher priority and `b` the lower one."""
    sources = Sources([source(0, "a", lane=HIGH, cohort=0), source(1, "b", lane=LOW, cohort=1)])
    return SessionState(sources, split_evenly(1), Checkpoint(), None, FOREVER, **kept)  # type: ignore[arg-type]


# proves G11
def test_what_has_priority_does_not_wait_for_a_backlog_that_was_reported_before_it() -> None:
    state = two_priorities()
    create_journals(state, journal_info(A, 100), journal_info(B, 100))
    for number in range(1, 11):
        report(state, B, 1, through=number * 10, producers=[(1, number)], documents=10)
    report(state, A, 0, through=10, producers=[(2, 50)], documents=10)
    report(state, A, 0, through=20, producers=[(2, 60)], documents=10)
    assert [shown_commits(state, 20) for _ in range(7)] == [
        {(place(0, 0), 2): 60},
        *({(place(1, 1), 1): number} for number in (2, 4, 6, 8, 10)),
        {},
    ]


# proves G11
def test_reports_of_a_lower_priority_fill_what_a_higher_one_leaves_of_a_checkpoint() -> None:
    state = two_priorities()
    create_journals(state, journal_info(A, 100), journal_info(B, 100))
    for number in (1, 2):
        report(state, B, 1, through=number * 10, producers=[(1, number)], documents=10)
    report(state, A, 0, through=10, producers=[(2, 50)], documents=10)
    assert shown_commits(state, 20) == {(place(0, 0), 2): 50, (place(1, 1), 1): 1}
    assert shown_commits(state, 20) == {(place(1, 1), 1): 2}


# proves G10
def test_a_replay_takes_only_the_reports_that_it_needs() -> None:
    state = two_priorities()
    create_journals(state, journal_info(A, 100), journal_info(B, 100))
    report(state, B, 1, through=10, producers=[(1, 1)], documents=10)
    handed_out = state.next_checkpoint(10)
    state = two_priorities()
    state._read_through = handed_out
    create_journals(state, journal_info(A, 100), journal_info(B, 100))
    for number in range(1, 6):
        report(state, A, 0, through=number * 10, producers=[(2, 50 + number)], documents=10)
    assert state.next_checkpoint(10) is None, "nothing of B is read again"
    report(state, B, 1, through=10, producers=[(1, 1)], documents=10)
    report(state, B, 1, through=20, producers=[(1, 2)], documents=10)
    assert state.next_checkpoint(10) is handed_out
    assert [shown_commits(state, 10) for _ in range(6)] == [
        *({(place(0, 0), 2): 50 + number} for number in range(1, 6)),
        {(place(1, 1), 1): 2},
    ]


# proves G10, G13
def test_a_replay_does_not_wait_for_a_lane_behind_one_that_is_held() -> None:
    """Slices read nothing of the lower priority while they hold back the higher one."""
    before = two_priorities()
    create_journals(before, journal_info(A, 100), journal_info(B, 100))
    report(before, B, 1, through=10, producers=[(1, 1)])
    state = two_priorities(is_limited=True, kept_rows_max=200)
    state._read_through = before.next_checkpoint()
    create_journals(state, journal_info(A, 1000), journal_info(B, 100))
    for number in range(1, 12):
        report(state, A, 0, through=number * 10, producers=[(2, 50 + number)])
    assert state.held_lanes == {HIGH}
    assert state.next_checkpoint(10) is None
    assert state.held_lanes == set()


# proves G12
def test_reports_of_other_priorities_do_not_pile_up_while_a_poll_waits_for_a_replay() -> None:
    before = two_priorities()
    create_journals(before, journal_info(A, 100), journal_info(B, 100))
    report(before, B, 1, through=10, producers=[(1, 1)])
    state = two_priorities(is_limited=True, kept_rows_max=200)
    state._read_through = before.next_checkpoint()
    create_journals(state, journal_info(A, 1000), journal_info(B, 100))
    state.poll(10)
    for number in range(1, 60):
        report(state, A, 0, through=number * 10, producers=[(2, 50 + number)])
        state.advance()
        assert len(state._reports) <= 11
    assert state.is_starving


# proves G11, G12
def test_only_the_lane_waits_of_which_many_reports_wait() -> None:
    state = two_priorities(is_limited=True, kept_rows_max=200)
    create_journals(state, journal_info(A, 1000), journal_info(B, 1000))
    for number in range(1, 12):
        assert state.held_lanes == set()
        report(state, B, 1, through=number * 10, producers=[(1, number)], documents=10)
    assert state.held_lanes == {LOW}
    report(state, A, 0, through=10, producers=[(2, 50)], documents=10)
    assert state.held_lanes == {LOW}
    while state.held_lanes:
        assert state.next_checkpoint(10) is not None
    assert len(state._reports) == 5


def test_a_report_of_several_priorities_is_refused() -> None:
    state = two_priorities()
    create_journals(state, journal_info(A, 100), journal_info(B, 100))
    both = np.array([(place(0, 0), 10), (place(1, 1), 10)], JOURNAL_ROW)
    with pytest.raises(ProtocolError, match="it has places of several priorities"):
        state.progress(0, ProgressReport(both))


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


# proves G12
@pytest.mark.long
def test_transactions_do_not_pile_up_while_nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock window leaves out all documents, so no full Queue holds back the reads."""
    monkeypatch.setattr(memory_run, "KEPT_ROWS_MAX", 2560)
    late = (1 << 59, 1 << 60)
    story = MemorySession("ab", [source(n, name, window=late) for n, name in enumerate("ab")])
    for clock in range(10, 12010, 10):
        story.write(A, clock)
        story.write(B, clock + 1)
        story.commit(clock + 2, A, B)
        story.settle()
    assert len(story.run.session.frontier.pending) < 600


# proves G12
def test_nothing_but_a_number_is_kept_of_a_journal_that_is_gone() -> None:
    story = MemorySession("a", [source(0, "a")], members=1)
    for number in range(20):
        journal = story.world.create_journal("a").id
        story.write(journal, 10 + number)
        story.commit(11 + number, journal)
        story.poll()
        story.delete(journal)
        story.outside(A, 1000 + number, producer=5)
        story.poll()
    state = story.run.session
    kept = {
        name: len(table)
        for holder in (
            state,
            state.assignment,
            state.frontier,
            state.frontier.pending,
        )
        for name, table in vars(holder).items()
        if isinstance(table, dict | set) and "gone" not in name and len(table) > 1
    }
    assert kept == {}


# proves G12
def test_with_limits_slices_wait_while_many_reports_wait() -> None:
    """Every checkpoint has as many documents as it may, however many reports wait."""
    state = session(is_limited=True, kept_rows_max=100)
    create_journals(state, journal_info(A, 100_000))
    holds = []
    for number in range(1, 13):
        report(state, A, 0, through=number * 10, producers=[(1, number)], documents=10)
        holds.append(bool(state.held_lanes))
    assert holds == [False] * 10 + [True] * 2
    found = []
    while (delta := state.next_checkpoint(20)) is not None:
        found.append((delta.frontier.producers["last_commit"].tolist(), bool(state.held_lanes)))
    held = [True, True, True, False, False, False]
    assert found == [([2 * (n + 1)], held[n]) for n in range(6)]


# proves G12
def test_reports_do_not_pile_up_while_nobody_polls() -> None:
    """A report has a row of a journal and one of a producer, and counts as ten rows."""
    state = session(kept_rows_max=2560)
    create_journals(state, journal_info(A, 100_000))
    for number in range(1, 2001):
        report(state, A, 0, through=number * 10, producers=[(1, number)], documents=10)
    assert len(state._reports) <= 256
    first = state.next_checkpoint(50)
    assert first is not None
    assert first.frontier.producers["last_commit"].tolist() == [2000 - 256]
    second = state.next_checkpoint(50)
    assert second is not None
    assert second.frontier.producers["last_commit"].tolist() == [2000 - 256 + 5]
