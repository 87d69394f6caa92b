"""What a Slice fetches, sends and reports, and when."""

from __future__ import annotations

import pytest

from headrace.clock import Clock
from headrace.errors import ProtocolError
from headrace.frontier import place
from headrace.ids import JournalId, Offset
from headrace.shuffle.queue.state import INFINITE
from headrace.shuffle.slice.read import Phase
from headrace.shuffle.slice.state import (
    Fetch,
    Limits,
    Report,
    SendBlock,
    SendBounds,
    SendEnds,
    SendFlush,
)
from tests.shuffle.made import Hint, frames, source
from tests.shuffle.slices import ScriptedSlice, commits, only, sent

DELAY = 100


# -- phases ------------------------------------------------------------------------------------


def test_a_read_is_pending_then_queued_then_pending_again() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("O10 O11"))

    def phase() -> Phase:
        return slice.state.reads[at].phase

    assert phase() is Phase.PENDING
    (fetch,) = only(slice.state.advance(Clock(slice.now)), Fetch)
    assert (fetch.place, fetch.offset, fetch.through) == (at, 0, 20)
    assert phase() is Phase.PENDING
    slice.answer(fetch)
    assert phase() is Phase.QUEUED
    assert sent(slice.run()) == [(0, 10, 11)]
    assert phase() is Phase.PENDING
    assert slice.state.wake_at(Clock(slice.now)) is None


def test_a_frame_that_is_not_due_gates_its_read_and_keeps_no_room() -> None:
    slice = ScriptedSlice([source(delay=DELAY)], now=50)
    at = slice.start(frames("O10 O40"))
    assert sent(slice.run(50)) == []
    read = slice.state.reads[at]
    assert read.phase is Phase.GATED
    assert not read.frames
    assert slice.state.wake_at(Clock(50)) == 110
    assert sent(slice.run(109)) == []
    assert sent(slice.run(110)) == [(0, 10, 10)]
    assert slice.state.wake_at(Clock(110)) == 140
    assert sent(slice.run(140)) == [(0, 40, 40)]
    assert slice.state.wake_at(Clock(140)) is None


def test_clocks_ahead_of_the_wall_clock_are_due_without_a_delay() -> None:
    slice = ScriptedSlice(now=5)
    slice.start(frames("O10"))
    assert sent(slice.run()) == [(0, 10, 10)]


# proves G8
def test_due_documents_of_a_low_lane_precede_delayed_ones_of_a_high_lane() -> None:
    sources = [source(0, "high", delay=DELAY), source(1, "low", lane=1)]
    slice = ScriptedSlice(sources, now=50)
    slice.start(frames("O10", journal=1), tag=0, binding=0)
    slice.start(frames("O20", journal=2), tag=1, binding=1)
    assert sent(slice.run(50)) == [(1, 20, 20)]
    assert sent(slice.run(110)) == [(0, 10, 10)]


# proves G8
def test_lanes_come_in_order_and_within_one_adjusted_clocks_do() -> None:
    sources = [source(0, "a", lane=1), source(1, "b", delay=5), source(2, "b2", delay=0)]
    slice = ScriptedSlice(sources, limits=Limits(cycle_documents=1))
    slice.start(frames("O1 O2", journal=1), tag=0, binding=0)
    slice.start(frames("O10 O20", journal=2), tag=1, binding=1)
    slice.start(frames("O14 O16 O26", journal=3), tag=2, binding=2)
    clocks = [first for _, first, _ in sent(slice.run())]
    assert clocks == [14, 10, 16, 20, 26, 1, 2]


# -- fairness ----------------------------------------------------------------------------------


def test_a_stalled_fetch_holds_others_only_for_the_patience() -> None:
    slice = ScriptedSlice(limits=Limits(patience=50), now=1000)
    stalled = slice.start(frames("O10", journal=1), tag=0)
    slice.start(frames("O20 O30", journal=2), tag=1)
    slice.held = {stalled}
    assert sent(slice.run(1000)) == []
    assert slice.state.wake_at(Clock(1000)) == 1050
    assert sent(slice.run(1050)) == [(0, 20, 30)]
    assert commits(slice.effects) == [(1, 30)]
    slice.held = set()
    assert sent(slice.run(1051)) == [(0, 10, 10)]


def test_an_idle_journal_that_grows_again_is_not_waited_for() -> None:
    slice = ScriptedSlice(now=1000)
    grows = slice.start(frames("O10", journal=1), tag=0)
    other = slice.start(frames("O11", journal=2), tag=1)
    slice.run()
    slice.held = {grows}
    slice.grow(grows, frames("O20", journal=1, begin=10))
    slice.grow(other, frames("O30", journal=2, begin=10))
    assert sent(slice.run()) == [(0, 30, 30)]


def test_a_huge_backlog_does_not_hold_up_a_lane_before_it() -> None:
    sources = [source(0, "now"), source(1, "old", lane=1)]
    limits = Limits(fetch_bytes=100, ahead_bytes=1, cycle_documents=5)
    slice = ScriptedSlice(sources, limits=limits)
    script = " ".join(f"O{clock}" for clock in range(1, 501))
    slice.start(frames(script, journal=2), tag=1, binding=1)
    slice.grants = False
    slice.start(frames("O900", journal=1), tag=0, binding=0)
    slice.run()
    lanes = [lane for lane, *_ in sent(slice.effects)]
    assert lanes.index(0) <= 1
    assert sum(last - first + 1 for _, first, last in sent(slice.effects)) == 501


def test_a_backlog_fills_its_lane_and_others_are_fetched_still() -> None:
    slice = ScriptedSlice(limits=Limits(fetch_bytes=50, ahead_bytes=1, credit_bytes=1))
    slice.grants = False
    slice.start(frames(" ".join(f"O{c}" for c in range(1, 101)), journal=1), tag=0)
    slice.run()
    assert len(sent(slice.effects)) == 1
    slice.start(frames("O5", journal=2), tag=1)
    assert [fetch.place for fetch in only(slice.run(), Fetch)] == [place(1, 0)]


# proves G12
def test_without_credit_nothing_is_sent_and_little_is_fetched() -> None:
    limits = Limits(credit_bytes=1, fetch_bytes=50, ahead_bytes=50, cycle_documents=1)
    slice = ScriptedSlice(limits=limits)
    slice.grants = False
    at = slice.start(frames(" ".join(f"O{c}" for c in range(1, 1001)), journal=1))
    slice.run()
    assert sent(slice.effects) == [(0, 1, 1)]
    assert slice.state.reads[at].frames_bytes <= 150
    block = only(slice.effects, SendBlock)[0]
    slice.state.granted(0, 0, len(block.head.pairs) + memoryview(block.body).nbytes)  # type: ignore[arg-type]
    assert sent(slice.run()) == [(0, 2, 2)]


@pytest.mark.parametrize("step", [1, 10, 10**9])
def test_offsets_are_positions_and_say_nothing_of_bytes(step: int) -> None:
    """A backend's positions may count records, or anything that ascends."""
    limits = Limits(credit_bytes=1, fetch_bytes=50, ahead_bytes=50, cycle_documents=1)
    slice = ScriptedSlice(limits=limits)
    slice.grants = False
    script = frames(" ".join(f"O{c}" for c in range(1, 101)))
    scaled = [
        frame._replace(offset=Offset(at * step), end=Offset((at + 1) * step))
        for at, frame in enumerate(script)
    ]
    at = slice.start(scaled)
    first, second = only(slice.run(), Fetch)
    assert first[3:] == (0, 100 * step, 50)
    assert second[3:] == (5 * step, 100 * step, 50)
    assert slice.state.reads[at].frames_bytes == 90
    slice.grants = True
    slice.state.granted(0, 0, 1 << 20)
    slice.run()
    assert sum(last - first + 1 for _, first, last in sent(slice.effects)) == 100
    assert slice.state.reads[at].taken == 100 * step


# -- bounds ------------------------------------------------------------------------------------


# proves G8
def test_bounds_are_never_below_what_was_sent_and_infinite_when_idle() -> None:
    slice = ScriptedSlice(limits=Limits(cycle_documents=1, credit_bytes=1))
    slice.grants = False
    slice.start(frames("O10 O20", journal=1), tag=0)
    effects = slice.run()
    assert only(effects, SendBounds)[-1].bounds == (20,)
    block = only(effects, SendBlock)[0]
    slice.state.granted(0, 0, len(block.head.pairs) + memoryview(block.body).nbytes)  # type: ignore[arg-type]
    assert only(slice.run(), SendBounds)[-1].bounds == (INFINITE,)
    slice.start(frames("O5", journal=2), tag=1)
    assert only(slice.state.advance(Clock(slice.now)), SendBounds)[0].bounds == (20,)


# proves G8
def test_what_is_being_fetched_first_holds_queues_back_until_patience_ends() -> None:
    slice = ScriptedSlice(limits=Limits(patience=50), now=1000)
    slice.held = {slice.start(frames("O10"))}
    assert only(slice.run(1000), SendBounds)[-1].bounds == (0,)
    assert only(slice.run(1050), SendBounds)[-1].bounds == (INFINITE,)


def test_gated_documents_do_not_hold_back_a_queue() -> None:
    slice = ScriptedSlice([source(delay=DELAY)], now=50)
    slice.start(frames("O10"))
    assert only(slice.run(50), SendBounds)[-1].bounds == (INFINITE,)


# -- ACKs --------------------------------------------------------------------------------------


# proves G6
@pytest.mark.parametrize("ack", ["A12", "A0"])
def test_an_ack_goes_only_to_the_queues_that_got_documents_of_its_span(ack: str) -> None:
    slice = ScriptedSlice(members=8)
    slice.start(frames(f"C10 C11 p2:O50 {ack}"))
    effects = slice.run()
    got = {b.member for b in only(effects, SendBlock) if (0, 1) in pairs(b)}
    ends = only(effects, SendEnds)
    assert {e.member for e in ends if e.ends[0].producer == 1} == got
    assert 1 <= len(got) < 8
    for each in ends:
        for end in each.ends:
            if end.producer == 1:
                assert (end.first, end.committed) == (10, ack == "A12")
                assert end.last == (12 if ack == "A12" else 11)


def pairs(block: SendBlock) -> set[tuple[int, int]]:
    return {(at, producer) for at, producer, *_ in block.head.pair_rows().tolist()}


def test_the_next_span_has_an_extent_of_its_own() -> None:
    slice = ScriptedSlice(members=8)
    at = slice.start(frames("C10 A10"))
    before = slice.run()
    slice.grow(at, frames("C21 A21", begin=20))
    for effects in (before, slice.run()):
        (block,), (ends,) = only(effects, SendBlock), only(effects, SendEnds)
        assert ends.member == block.member
    assert len({block.member for block in only(slice.effects, SendBlock)}) == 2


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


@pytest.mark.parametrize("script", ["O10", "A10", "C9", "C10 C9"])
def test_duplicates_of_what_was_committed_are_neither_sent_nor_flushed(script: str) -> None:
    slice = ScriptedSlice()
    slice.start(frames(script), producers=((1, 10),))
    effects = slice.run()
    assert sent(effects) == []
    assert only(effects, SendFlush) == []


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
    assert only(slice.run(), SendFlush) == [SendFlush(1)]
    slice.grow(at, frames("O11", begin=10))
    slice.grow(at, frames("O12", begin=20))
    assert only(slice.run(), SendFlush) == []
    assert slice.state.flushed(1, 1) == []
    effects = slice.state.flushed(0, 1)
    assert [type(e) for e in effects] == [Report, SendFlush]
    assert commits(effects) == [(1, 10)]
    assert commits(slice.flushed(2)) == [(1, 12)]


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
    with pytest.raises(ProtocolError, match=f"member {member} answered Flush {number}, not asked"):
        slice.state.flushed(member, number)


def test_a_report_says_where_the_read_and_its_producers_stand() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("C10+2 p2:C20 A12"))
    (report,) = only(slice.run(), Report)
    assert report.delta.journals.tolist() == [(at, 30)]
    assert sorted(report.delta.producers.tolist()) == [(at, 1, 12, -30, 0), (at, 2, 0, 10, -1)]
    assert report.delta.documents == 2


# -- hints -------------------------------------------------------------------------------------

OWN: Hint = (1, 10, 1, 12)


def reported(sources: list[int], hints: list[Hint], *, also_reads: bool = False) -> Report:
    """What is reported of `C10 A12` in journal 1, which these hints accompany."""
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
    assert report.delta.commits.tolist() == [(0, 1, 12, place(0, 0), 1, 12, 10)]
    assert report.delta.parts.tolist() == [(0, 1, 12, 2, 1, 1, 12, 10)]


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
    some = frames("C10 A12", hints=[OWN, (7, 0, 1, 12), (0, 0, 1, 12)])
    assert slice.state.unknown_journals(some) == {1, 7}
    slice.state.learned(JournalId(7), [])
    slice.state.learned(JournalId(1), [0])
    assert slice.state.unknown_journals(some) == set()


# -- what goes wrong, and what ends ------------------------------------------------------------


# proves G13
@pytest.mark.parametrize(
    ("script", "error"),
    [
        (
            "C10 O12",
            "c/0000, producer 000000000001: an OUTSIDE document of clock 12 at offset 10 stands"
            " inside the span that the same producer opened at 0",
        ),
        (
            "C10+5 A12",
            "c/0000, producer 000000000001: an ACK of clock 12 stands below the pending document"
            " of clock 14",
        ),
    ],
)
def test_frames_out_of_order_name_journal_and_producer(script: str, error: str) -> None:
    slice = ScriptedSlice()
    slice.start(frames(script))
    with pytest.raises(ProtocolError) as failed:
        slice.run()
    assert failed.value.what == error


def test_a_stopped_read_is_gone_though_its_fetch_comes_later() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("O10", journal=1), tag=0)
    other = slice.start(frames("O20", journal=2), tag=1)
    (fetch, _) = only(slice.state.advance(Clock(slice.now)), Fetch)
    slice.state.stop(at)
    slice.state.stop(at)
    slice.answer(fetch)
    slice.state.head(at, Offset(99))
    slice.held = {at}
    slice.state.fetched(2, other, slice.frames[other], Offset(10))
    assert sent(slice.run()) == [(0, 20, 20)]
    assert slice.state.reads.keys() == {other}


def test_what_a_stopped_read_had_queued_is_dropped() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("O10"))
    (fetch,) = only(slice.state.advance(Clock(slice.now)), Fetch)
    slice.answer(fetch)
    slice.state.stop(at)
    assert sent(slice.run()) == []
