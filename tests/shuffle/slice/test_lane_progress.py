"""What a Slice reports, and when: Flushes, progress, and the parts that hints name."""

from __future__ import annotations

import pytest

from headrace.clock import Clock
from headrace.errors import ProtocolError
from headrace.frontier import place
from headrace.ids import JournalId, Offset
from headrace.shuffle.slice.effects import Fetch, Report, SendFlush
from headrace.shuffle.slice.state import Limits
from tests.shuffle.builders import Hint, frames, source
from tests.shuffle.slice.scripted_slice import ScriptedSlice, commits, only, sent

# -- flushing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "flushes"),
    [
        ("C10", 0),
        ("C10 C11", 0),
        ("O10", 1),
        ("C10 A10", 1),
        ("C10 A0", 1),
        ("A10", 1),
    ],
)
def test_a_flush_follows_what_commits_or_rolls_back_and_nothing_else(
    script: str, flushes: int
) -> None:
    slice = ScriptedSlice(members=2)
    slice.start(frames(script))
    effects = slice.run()
    assert len(only(effects, SendFlush)) == flushes
    assert len(only(effects, Report)) == flushes


def test_a_report_counts_the_documents_that_were_committed_since_the_one_before() -> None:
    slice = ScriptedSlice()
    at = slice.start([])
    counted = []
    for number, script in enumerate(("C10+3 C13 A14", "C20+2 A22", "C30+5 A0", "O40", "C50 A50")):
        slice.grow(at, frames(script, begin=100 * number))
        counted += [report.delta.documents for report in only(slice.run(), Report)]
    assert counted == [4, 2, 0, 1, 1]


# proves G7, G9
@pytest.mark.parametrize("script", ["O10", "A10", "C9", "C10 C9", "O9 p2:C20"])
def test_duplicates_of_what_was_committed_are_not_sent_and_that_they_are_read_is_reported(
    script: str,
) -> None:
    """A hint may name a duplicate: the Session waits until it hears that the Slice has read it."""
    slice = ScriptedSlice()
    at = slice.start(frames(script), producers=((1, 10),))
    effects = slice.run()
    assert {clock for _, clock, _ in sent(effects)} <= {20}
    (report,) = only(effects, Report)
    assert report.delta.journals.tolist() == [(at, 10 * len(script.split()))]
    assert report.delta.documents == 0


def test_many_duplicates_are_one_flush_and_then_there_is_silence() -> None:
    slice = ScriptedSlice(limits=Limits(fetch_bytes=30, cycle_documents=1))
    script = " ".join(f"O{clock}" for clock in range(1, 101))
    at = slice.start(frames(script), producers=((1, 100),))
    other = slice.start([], tag=1)
    assert only(slice.run(), SendFlush) == [SendFlush(1, 0)]
    for _ in range(3):
        slice.state.head(at, Offset(1000))
        slice.state.head(other, Offset(0))
        assert slice.run(slice.now + 1000) == []
    assert slice.state.is_settled
    slice.grow(at, frames("C101", begin=1000))
    slice.run()
    slice.grow(at, frames("C101", begin=1010))
    assert only(slice.run(), SendFlush) == [SendFlush(2, 0)]
    assert slice.state.is_settled


def test_duplicates_before_what_is_open_are_reported_though_the_head_is_never_reached() -> None:
    slice = ScriptedSlice(limits=Limits(fetch_bytes=10))
    at = slice.start(frames("O9 O10 C11 C12 C13"), producers=((1, 10),))
    while not only(slice.effects, SendFlush):
        assert slice.state.reads[at].taken < slice.state.reads[at].head
        slice.effects += slice.state.advance(Clock(slice.now))
        for fetch in only(slice.effects, Fetch)[-1:]:
            slice.answer(fetch)
    assert slice.state.reads[at].taken == 30


# proves G7
def test_a_frame_that_reaches_over_the_last_commit_is_cut() -> None:
    slice = ScriptedSlice()
    slice.start(frames("C8+5 A12"), producers=((1, 10),))
    assert sent(slice.run()) == [(0, 11, 12)]


# proves G7
def test_one_flush_is_in_flight_and_the_next_has_what_came_meanwhile() -> None:
    slice = ScriptedSlice(members=2)
    slice.answers_flushes = False
    at = slice.start(frames("O10"))
    assert only(slice.run(), SendFlush) == [SendFlush(1, 0)]
    slice.grow(at, frames("O11", begin=10))
    slice.grow(at, frames("O12", begin=20))
    assert only(slice.run(), SendFlush) == []
    assert slice.state.flushed(1, 1) == []
    effects = slice.state.flushed(0, 1)
    assert [type(e) for e in effects] == [Report, SendFlush]
    assert commits(effects) == [(1, 10)]
    assert commits(slice.flushed(2)) == [(1, 12)]


# proves G11
def test_a_flush_of_one_lane_does_not_hold_up_another() -> None:
    """A block of low priority may wait at a Queue for other Slices' blocks of high priority."""
    slice = ScriptedSlice([source(0, "a", lane=0), source(1, "b", lane=1, cohort=1)])
    slice.answers_flushes = False
    high = slice.start([], tag=0, binding=0)
    low = slice.start(frames("O10"), tag=1, binding=1)
    assert only(slice.run(), SendFlush) == [SendFlush(1, 1)]
    slice.grow(high, frames("O20"))
    assert only(slice.run(), SendFlush) == [SendFlush(2, 0)]
    (report,) = slice.state.flushed(0, 2)
    assert isinstance(report, Report)
    assert report.delta.journals.tolist() == [(high, 10)]
    assert not slice.state.is_settled
    (report,) = slice.state.flushed(0, 1)
    assert isinstance(report, Report)
    assert report.delta.journals.tolist() == [(low, 10)]
    assert slice.state.is_settled


# proves G13
@pytest.mark.parametrize(("member", "number"), [(0, 1), (0, 3), (1, 2)])
def test_an_answer_to_no_flush_is_an_error(member: int, number: int) -> None:
    slice = ScriptedSlice(members=2)
    at = slice.start(frames("O10"))
    slice.run()
    slice.answers_flushes = False
    slice.grow(at, frames("O11", begin=10))
    slice.run()
    slice.state.flushed(1, 2)
    with pytest.raises(ProtocolError, match=f"member {member} answered Flush {number},"):
        slice.state.flushed(member, number)


def test_a_report_says_where_the_read_and_its_producers_stand() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("C10+2 p2:C20 A12"))
    (report,) = only(slice.run(), Report)
    assert report.delta.journals.tolist() == [(at, 30)]
    assert sorted(report.delta.producers.tolist()) == [
        (at, 1, 12, -30, 0, 12),
        (at, 2, 0, 10, -1, 0),
    ]
    assert report.delta.documents == 2


# -- hints -------------------------------------------------------------------------------------

OWN: Hint = (1, 10, 1, 12)


def reported(sources: list[int], hints: list[Hint], *, also_reads: bool = False) -> Report:
    """Return the report of `C10 A12` in journal 1, whose ACK carries these hints."""
    made = [source(0, "a"), *(source(n + 1, "b", cohort=c) for n, c in enumerate(sources))]
    slice = ScriptedSlice(made)
    slice.state.learned(JournalId(2), [each.tag for each in made[1:]])
    slice.state.learned(JournalId(3), [])
    if also_reads:
        slice.start(frames("C10 A12", journal=2, hints=hints), tag=1, binding=1)
    slice.start(frames("C10 A12", journal=1, hints=hints), tag=0, binding=0)
    return only(slice.run(), Report)[0]


# proves G9
def test_an_ack_elsewhere_in_the_cohort_is_a_part_to_wait_for() -> None:
    report = reported([0], [OWN, (2, 10, 1, 12)])
    assert report.delta.commits.tolist() == [(0, 1, 12, place(0, 0), 1, 12, 10, 0)]
    assert report.delta.parts.tolist() == [(0, 1, 12, 2, 1, 1, 12, 10)]


# proves G9
def test_an_ack_that_comes_next_is_a_part_to_wait_for() -> None:
    """The Slice has taken everything before the ACK, and the journal ends there as yet."""
    slice = ScriptedSlice([source(0, "a"), source(1, "b")])
    slice.start(frames("C10", journal=2), tag=1, binding=1)
    slice.run()
    hints: list[Hint] = [OWN, (2, 10, 1, 12)]
    slice.start(frames("C10 A12", journal=1, hints=hints), tag=0, binding=0)
    (report,) = only(slice.run(), Report)
    assert report.delta.parts.tolist() == [(0, 1, 12, 2, 1, 1, 12, 10)]


def test_a_transaction_of_two_producers_is_reported_though_all_of_it_is_read() -> None:
    """One of them may have an older transaction that waits, and then both wait."""
    slice = ScriptedSlice([source(0, "a"), source(1, "b")])
    hints: list[Hint] = [(1, 10, 3, 12), (2, 10, 2, 29)]
    for tag, script in enumerate(["p3:C10 p3:A12", "p2:C20 p2:A29"]):
        slice.state.learned(JournalId(tag + 1), [tag])
        slice.start(frames(script, journal=tag + 1, hints=hints), tag=tag, binding=tag)
    (report,) = only(slice.run(), Report)
    assert report.delta.parts.tolist() == []
    assert [row[3:6] for row in report.delta.commits.tolist()] == [
        (place(0, 0), 3, 12),
        (place(1, 1), 2, 29),
    ]


def test_a_part_is_waited_for_under_every_binding_of_the_cohort() -> None:
    report = reported([0, 1, 0], [OWN, (2, 10, 1, 12)])
    assert [row[4] for row in report.delta.parts.tolist()] == [1, 3]


@pytest.mark.parametrize(
    ("sources", "hints", "also_reads"),
    [
        ([], [OWN], False),
        ([1], [OWN, (2, 10, 1, 12)], False),
        ([], [OWN, (3, 10, 1, 12)], False),
        ([0], [OWN, (0, 0, 1, 12)], False),
        ([0], [OWN, (2, 10, 1, 0)], False),
        ([0], [OWN, (2, 10, 1, 12)], True),
    ],
    ids=["alone", "other cohort", "not a source", "no journal", "rolled back", "read here too"],
)
def test_hints_that_leave_nothing_to_wait_for_are_not_reported(
    sources: list[int], hints: list[Hint], also_reads: bool
) -> None:
    report = reported(sources, hints, also_reads=also_reads)
    assert report.delta.commits.tolist() == []
    assert report.delta.parts.tolist() == []


def test_a_transaction_of_two_producers_is_named_alike_wherever_it_is_read() -> None:
    hints: list[Hint] = [(1, 10, 3, 12), (2, 10, 2, 29)]
    made = [source(0, "a"), source(1, "b")]
    for tag, script in enumerate(["p3:C10 p3:A12", "p2:C20 p2:A29"]):
        slice = ScriptedSlice(made)
        slice.state.learned(JournalId(1), [0])
        slice.state.learned(JournalId(2), [1])
        slice.start(frames(script, journal=tag + 1, hints=hints), tag=tag, binding=tag)
        (report,) = only(slice.run(), Report)
        assert [row[:3] for row in report.delta.commits.tolist()] == [(0, 2, 29)]
        assert [row[:3] for row in report.delta.parts.tolist()] == [(0, 2, 29)]


def test_a_journal_of_two_bindings_hints_itself() -> None:
    made = [source(0, "a"), source(1, "a")]
    slice = ScriptedSlice(made)
    slice.start(frames("C10 A12"), tag=0, binding=0)
    (report,) = only(slice.run(), Report)
    assert [row[3:5] for row in report.delta.parts.tolist()] == [(1, 1)]


def test_hinted_journals_of_which_nothing_is_known_are_asked_for() -> None:
    slice = ScriptedSlice()
    hinting = frames("C10 A12", hints=[OWN, (7, 0, 1, 12), (0, 0, 1, 12)])
    assert slice.state.unknown_journals(hinting) == {1, 7}
    slice.state.learned(JournalId(7), [])
    slice.state.learned(JournalId(1), [0])
    assert slice.state.unknown_journals(hinting) == set()


def test_an_ack_of_nothing_begins_with_itself() -> None:
    """The Session withholds a commit from its first clock on: not from that of an earlier span."""
    slice = ScriptedSlice([source(0, "a"), source(1, "b")])
    slice.state.learned(JournalId(2), [1])
    script = frames("C10 A12") + frames("A20", begin=20, hints=[(1, 20, 1, 20), (2, 0, 1, 20)])
    at = slice.start(script)
    (report,) = only(slice.run(), Report)
    assert report.delta.commits.tolist() == [(0, 1, 20, at, 1, 20, 20, 20)]


# -- what ends ---------------------------------------------------------------------------------


def test_of_a_stopped_read_nothing_more_is_reported() -> None:
    slice = ScriptedSlice()
    slice.answers_flushes = False
    stopped = slice.start(frames("C10", journal=1), tag=0)
    other = slice.start(frames("O20", journal=2), tag=1)
    slice.run()
    slice.grow(stopped, frames("C11 p2:O30", journal=1, begin=10))
    slice.grow(other, frames("O40", journal=2, begin=10))
    slice.run()
    slice.state.stop([stopped], 0)
    effects = slice.flushed(1) + slice.flushed(2)
    before, after = only(effects, Report)
    assert sorted(before.delta.journals["place"].tolist()) == [stopped, other]
    assert after.delta.journals["place"].tolist() == [other]
    assert after.delta.producers["place"].tolist() == [other]


# proves G9
def test_an_ack_in_a_journal_that_is_stopped_is_left_to_the_session() -> None:
    made = [source(0, "a"), source(1, "b")]
    hints: list[Hint] = [OWN, (2, 10, 1, 12)]
    slice = ScriptedSlice(made)
    slice.state.learned(JournalId(1), [0])
    stopped = slice.start(frames("C10 A12", journal=2, hints=hints), tag=1, binding=1)
    slice.run()
    slice.state.stop([stopped], 0)
    slice.start(frames("C10 A12", journal=1, hints=hints), tag=0, binding=0)
    (report,) = only(slice.run(), Report)
    assert [row[3:5] for row in report.delta.parts.tolist()] == [(2, 1)]
