"""What a Slice fetches, sends and reports, and when."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.clock import Clock
from headrace.errors import OutdatedError, ProtocolError
from headrace.frontier import place
from headrace.ids import Offset, Producer
from headrace.settings import KIB, MIB, ShuffleSettings
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.block import block_bytes
from headrace.shuffle.slice.effects import (
    Fetch,
    Finish,
    SendBlock,
    SendBounds,
    SendEnds,
    SendFlush,
    SendStarving,
    SendStop,
)
from headrace.shuffle.slice.journal_read import Phase, Read
from headrace.shuffle.slice.state import Limits, credit_that_fits
from tests.shuffle.builders import frames, source
from tests.shuffle.slice.scripted_slice import ScriptedSlice, commits, only, sent

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
    assert slice.state.wake_at() is None


def test_a_frame_that_is_not_due_gates_its_read() -> None:
    slice = ScriptedSlice([source(delay=DELAY)], now=50)
    at = slice.start(frames("O10 O40"))
    assert sent(slice.run(50)) == []
    read = slice.state.reads[at]
    assert read.phase is Phase.GATED
    assert slice.state.wake_at() == 110
    assert sent(slice.run(109)) == []
    assert sent(slice.run(110)) == [(0, 10, 10)]
    assert slice.state.wake_at() == 140
    assert sent(slice.run(140)) == [(0, 40, 40)]
    assert slice.state.wake_at() is None


@pytest.mark.parametrize(("now", "is_due"), [(109, False), (110, True)])
def test_a_frame_is_due_when_its_delay_has_passed_and_not_before(now: int, is_due: bool) -> None:
    slice = ScriptedSlice([source(delay=DELAY)], now=now)
    slice.start(frames("O10"))
    assert sent(slice.run(now)) == ([(0, 10, 10)] if is_due else [])


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


# proves G11, G12
def test_a_lane_that_is_held_takes_no_more_and_lanes_before_it_go_on() -> None:
    sources = [source(0, "high"), source(1, "low", lane=1)]
    slice = ScriptedSlice(sources)
    slice.state.hold([1])
    high = slice.start(frames("O10", journal=1), tag=0, binding=0)
    slice.start(frames("O5", journal=2), tag=1, binding=1)
    assert sent(slice.run()) == [(0, 10, 10)]
    slice.grow(high, frames("O20", journal=1, begin=10))
    assert sent(slice.run()) == [(0, 20, 20)]
    slice.state.hold([])
    assert sent(slice.run()) == [(1, 5, 5)]


# proves G12
def test_a_journal_that_is_new_waits_too_while_only_some_places_go_on() -> None:
    slice = ScriptedSlice()
    behind = slice.start(frames("O10", journal=1), tag=0)
    slice.state.hold([], {0: [behind]})
    slice.start(frames("O5", journal=2), tag=1)
    assert sent(slice.run()) == [(0, 10, 10)]
    slice.state.hold([])
    assert sent(slice.run()) == [(0, 5, 5)]


# -- fairness ----------------------------------------------------------------------------------


def test_a_stalled_fetch_holds_others_only_for_the_patience() -> None:
    slice = ScriptedSlice(limits=Limits(patience=50), now=1000)
    stalled = slice.start(frames("O10", journal=1), tag=0)
    slice.start(frames("O20 O30", journal=2), tag=1)
    slice.held = {stalled}
    assert sent(slice.run(1000)) == []
    assert slice.state.wake_at() == 1050
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
    assert only(slice.run(), Fetch)[0].place == place(1, 0)


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
    slice.give_back(block)
    assert sent(slice.run()) == [(0, 2, 2)]


# proves G12
@pytest.mark.parametrize(("spare_bytes", "blocks"), [(0, 1), (1, 2)])
def test_credit_is_used_up_when_as_much_is_unwritten(spare_bytes: int, blocks: int) -> None:
    trial = ScriptedSlice()
    trial.start(frames("O1"))
    (block,) = only(trial.run(), SendBlock)
    credit_bytes = block_bytes(block.head, block.body) + spare_bytes
    slice = ScriptedSlice(limits=Limits(credit_bytes=credit_bytes, cycle_documents=1))
    slice.grants = False
    slice.start(frames("O1 O2 O3"))
    assert len(sent(slice.run())) == blocks
    assert slice.state.lacks_credit(Clock(slice.now))


# proves G12
def test_a_slice_waits_for_the_fullest_queue_though_another_has_room() -> None:
    """It would lose the order if it went on with documents of the idle member alone."""
    limits = Limits(credit_bytes=1, cycle_documents=1)
    slice = ScriptedSlice(members=2, limits=limits)
    slice.grants = False
    slice.start(frames(" ".join(f"O{clock}" for clock in range(1, 101))))
    (block,) = only(slice.run(), SendBlock)
    slice.state.granted(1 - block.member, block.head.lane, 0)
    assert only(slice.run(), SendBlock) == []
    slice.give_back(block)
    assert len(only(slice.run(), SendBlock)) == 1


@pytest.mark.parametrize("members", [1, 2, 8])
def test_blocks_are_as_large_for_many_members_as_for_one(members: int) -> None:
    slice = ScriptedSlice(members=members, limits=Limits(cycle_documents=100))
    slice.start(frames(" ".join(f"O{clock}+5" for clock in range(1, 8001, 5))))
    blocks = only(slice.run(), SendBlock)
    assert sum(block.head.rows for block in blocks) == 8000
    assert len(blocks) <= 8000 / 100 + members


# proves G12
def test_a_cycle_ends_when_a_queue_has_no_credit_for_another_portion() -> None:
    limits = Limits(credit_bytes=300, cycle_documents=10)
    slice = ScriptedSlice(members=8, limits=limits)
    slice.grants = False
    slice.start(frames(" ".join(f"O{clock}" for clock in range(1, 1001))))
    documents = [0] * 8
    for block in only(slice.run(), SendBlock):
        documents[block.member] += block.head.rows
    assert 300 / 28 <= max(documents) < 300 / 28 + 10


# proves G8
def test_the_blocks_of_a_cycle_go_out_by_lane_and_clock() -> None:
    """A Queue takes a Slice's blocks as they come, even if a binding's pieces make many blocks."""
    sources = [source(0, "a"), source(1, "b"), source(2, "late", lane=1)]
    slice = ScriptedSlice(sources, limits=Limits(block_documents=1))
    slice.start(frames("O5 O6", journal=3), tag=2, binding=2)
    slice.start(frames("O10 O30 O50", journal=1), tag=0, binding=0)
    slice.start(frames("O20 O40", journal=2), tag=1, binding=1)
    assert [(lane, first) for lane, first, _ in sent(slice.run())] == [
        *((0, clock) for clock in (10, 20, 30, 40, 50)),
        *((1, clock) for clock in (5, 6)),
    ]


# proves G8
def test_every_queue_gets_the_blocks_of_a_cycle_by_clock_whatever_others_get() -> None:
    """Member 0 gets 10 of `b` and all of `a`; member 1 gets 25 of `b`."""
    slice = ScriptedSlice([source(0, "a"), source(1, "b")], members=2)
    slice.start(frames("O21 O26", journal=1), tag=0, binding=0)
    slice.start(frames("O10 O25", journal=2), tag=1, binding=1)
    blocks = only(slice.run(), SendBlock)
    lows = {at: [block.head.low for block in blocks if block.member == at] for at in range(2)}
    assert lows == {0: [10, 21], 1: [25]}


# proves G8
def test_one_producer_keeps_its_order_though_another_in_its_blocks_has_lower_clocks() -> None:
    """The block of 50 and 130 begins below the block before it, and still follows it."""
    slice = ScriptedSlice(limits=Limits(block_documents=2))
    slice.start(frames("O100 O101 p2:O50 O130"))
    assert sent(slice.run()) == [(0, 100, 101), (0, 50, 50), (0, 130, 130)]


@pytest.mark.parametrize("step", [1, 10, 10**9])
def test_offsets_are_positions_and_say_nothing_of_bytes(step: int) -> None:
    """A backend's positions may count records, or anything that ascends."""
    limits = Limits(credit_bytes=1, fetch_bytes=50, ahead_bytes=50, cycle_documents=1)
    slice = ScriptedSlice(limits=limits, offsets_are_bytes=False)
    slice.grants = False
    script = frames(" ".join(f"O{c}" for c in range(1, 101)))
    scaled = [
        frame._replace(offset=Offset(at * step), end=Offset((at + 1) * step))
        for at, frame in enumerate(script)
    ]
    at = slice.start(scaled)
    fetches = only(slice.run(), Fetch)
    assert fetches[0][3:5] == (0, 100 * step)
    assert all(0 < fetch.bytes_max <= 50 for fetch in fetches)
    assert 0 < slice.state.reads[at].frames_bytes <= 50
    slice.grants = True
    for block in only(slice.effects, SendBlock):
        slice.give_back(block)
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
    slice.give_back(block)
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


# proves G6
def test_a_span_that_begins_in_the_cycle_that_ends_another_keeps_its_extent() -> None:
    """Otherwise no Queue would hear that it is rolled back, and readers would show it later."""
    slice = ScriptedSlice()
    at = slice.start(frames("C10 A10 C20"))
    (ends,) = only(slice.run(), SendEnds)
    assert [end.committed for end in ends.ends] == [True]
    slice.grow(at, frames("A0", begin=30))
    (ends,) = only(slice.run(), SendEnds)
    assert [(end.first, end.last, end.committed) for end in ends.ends] == [(20, 20, False)]


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
    slice.state.stop([at], 0)
    slice.state.stop([at], 0)
    slice.answer(fetch)
    slice.state.head(at, Offset(99))
    slice.held = {at}
    slice.state.fetched(2, other, slice.frames[other], Offset(10))
    assert sent(slice.run()) == [(0, 20, 20)]
    assert slice.state.reads.keys() == {other}


@pytest.mark.long
def test_a_great_many_reads_are_stopped_without_looking_at_the_others() -> None:
    """A stop costs the same however many reads there are. A quadratic one would take minutes."""
    slice = ScriptedSlice()
    places = [slice.start([], tag=tag) for tag in range(20_000)]
    began = time.process_time()
    for at in places:
        slice.state.stop([at], 0)
    assert time.process_time() - began < 5.0
    assert not slice.state.reads


def test_what_a_stopped_read_had_queued_is_dropped() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("O10"))
    (fetch,) = only(slice.state.advance(Clock(slice.now)), Fetch)
    slice.answer(fetch)
    slice.state.stop([at], 0)
    assert sent(slice.run()) == []


@pytest.mark.parametrize(
    ("soft", "hard", "slices", "lanes", "credit"),
    [
        (2048 * MIB, 4096 * MIB, 16, 2, 4 * MIB),
        (4 * MIB, 8 * MIB, 2, 1, 512 * KIB),
        (4 * MIB, 8 * MIB, 4, 2, 128 * KIB),
        (8 * MIB, 8 * MIB, 1, 1, 1),
        (8 * MIB, 4 * MIB, 1, 1, 1),
    ],
)
def test_credit_is_what_fits_between_the_limits_of_a_queue(
    soft: int, hard: int, slices: int, lanes: int, credit: int
) -> None:
    settings = ShuffleSettings(queue_soft_bytes=soft, queue_hard_bytes=hard)
    assert credit_that_fits(settings, slices, lanes) == credit


def test_a_stop_is_sent_to_the_queues_by_lane_after_what_was_sent_of_its_places() -> None:
    slice = ScriptedSlice([source(0, lane=0), source(1, "b", lane=1)])
    places = [slice.start([], tag=tag, binding=tag % 2) for tag in range(4)]
    assert slice.state.stop(places, 7) == [
        SendStop(0, (places[0], places[2]), 7),
        SendStop(1, (places[1], places[3]), 7),
    ]


@pytest.mark.parametrize("starving", [True, False])
def test_the_queues_hear_whether_the_consumer_starves(starving: bool) -> None:
    assert ScriptedSlice().state.starve(starving, 3) == [SendStarving(starving, 3)]


def test_a_slice_says_once_that_its_cut_is_taken_and_reported() -> None:
    slice = ScriptedSlice()
    slice.answers_flushes = False
    at = slice.start(frames("O10"))
    assert Finish() not in slice.run(), "the Session may start more reads"
    slice.start(frames("O20", journal=2), tag=1, is_cut=True)
    slice.held = {at + (1 << 32)}
    assert Finish() not in slice.run(), "the Slice has not taken everything"
    slice.held = set()
    (first,) = only(slice.effects, SendFlush)
    assert Finish() not in slice.run(), "the Slice has not reported everything"
    (second,) = only(slice.flushed(first.number), SendFlush)
    assert Finish() not in slice.run()
    slice.flushed(second.number)
    assert slice.run() == [Finish()]
    assert slice.run() == []


def test_before_a_slice_is_told_what_to_read_it_announces_nothing() -> None:
    slice = ScriptedSlice()
    assert not slice.state.is_settled
    assert slice.run() == []
    slice.state.start([])
    assert slice.run() == [SendBounds((INFINITE,))]
    assert slice.state.is_settled


def test_a_journal_that_is_deleted_spoils_a_cut_and_nothing_else() -> None:
    slice = ScriptedSlice()
    at = slice.start(frames("O10"))
    slice.state.journal_deleted(at)
    slice.start([], tag=1, is_cut=True)
    with pytest.raises(OutdatedError, match="was deleted after the cut"):
        slice.state.journal_deleted(at)


@pytest.mark.parametrize("lane", [-1, 1])
def test_credit_for_a_lane_that_no_binding_has_is_refused(lane: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown lane {lane}"):
        ScriptedSlice().state.granted(0, lane, 1)


# -- invariants --------------------------------------------------------------------------------


def spoil_bytes(slice: ScriptedSlice, read: Read) -> None:
    read.frames_bytes += 1


def spoil_phase(slice: ScriptedSlice, read: Read) -> None:
    read.phase = Phase.PENDING


def spoil_order(slice: ScriptedSlice, read: Read) -> None:
    read.frames.reverse()


def spoil_offset(slice: ScriptedSlice, read: Read) -> None:
    read.taken = read.head


def spoil_span(slice: ScriptedSlice, read: Read) -> None:
    read.producer(Producer(1)).extent = 1


def spoil_credit(slice: ScriptedSlice, read: Read) -> None:
    slice.state.granted(0, 0, 1)


def spoil_bound(slice: ScriptedSlice, read: Read) -> None:
    slice.state._lanes[0].sent_clock = INFINITE + 1


def forget_read(slice: ScriptedSlice, read: Read) -> None:
    del slice.state.reads[read.place]


@pytest.mark.parametrize(
    "spoil",
    [
        *(spoil_bytes, spoil_phase, spoil_order, spoil_offset, spoil_span),
        *(spoil_credit, spoil_bound, forget_read),
    ],
)
def test_a_state_that_contradicts_itself_is_not_valid(
    spoil: Callable[[ScriptedSlice, Read], None],
) -> None:
    slice = ScriptedSlice()
    slice.state.hold([0])
    at = slice.start(frames("O10 O11 O12"))
    slice.run()
    slice.state.validate()
    spoil(slice, slice.state.reads[at])
    with pytest.raises(AssertionError):
        slice.state.validate()
