"""A Queue writes blocks in order, answers Flushes, and grants credit within its limits."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headrace.errors import QueueFullError, StorageError
from headrace.frontier import place
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.state import (
    CopyBlocks,
    Effect,
    GiveBack,
    QueueState,
    SendFlushed,
    SendGrant,
    Sync,
    WriteBlock,
    WriteRetraction,
    WriteStop,
)
from tests.shuffle.builders import head

MIB = 1 << 20
ROOMY = 1 << 40
P = place(3, 0)


def block_at(low: int, lane: int = 0, producer: int = 1) -> BlockHead:
    return head((P, producer, low, low), lane=lane)


def queue(slices: int = 1, lanes: int = 1, *, idle: bool = True) -> QueueState:
    """Return a Queue with plenty of room. If `idle`, no Slice has anything to send."""
    state = QueueState(slices, lanes, ROOMY, 2 * ROOMY)
    if idle:
        for slice in range(slices):
            state.bound(slice, [INFINITE] * lanes)
    return state


def written(effects: list[Effect]) -> list[tuple[int, int]]:
    """Return the lane and the least clock of each block that is written."""
    return [(e.head.lane, e.head.low) for e in effects if isinstance(e, WriteBlock)]


def scan(state: QueueState, *sizes: int) -> None:
    """Let a reader scan the written blocks, which have these sizes and lie at 0, 1, 2, …"""
    for location, size in enumerate(sizes):
        state.space.scanned(location, size)
    state.space.scanned_to = len(sizes)


def close(state: QueueState, *positions: int) -> list[Effect]:
    """Close these blocks: no checkpoint will show more of them."""
    state.space.closed(positions)
    effects = state.space_changed()
    state.validate()
    return effects


def ended(producer: int, first: int, last: int, *, committed: bool) -> SpanEnd:
    return SpanEnd(P, producer, first, last, committed, last if committed else 0)


# proves G8
def test_a_block_waits_for_slices_that_may_have_something_before_it() -> None:
    state = queue(2, idle=False)
    assert written(state.append(0, block_at(20), b"")) == []
    assert written(state.bound(1, [15])) == []
    assert written(state.append(1, block_at(15), b"")) == [(0, 15)]
    assert written(state.bound(1, [20])) == [(0, 20)]


def test_before_every_slice_has_announced_nothing_is_written() -> None:
    state = queue(3, idle=False)
    assert written(state.append(0, block_at(20), b"")) == []
    assert written(state.bound(1, [INFINITE])) == []
    assert written(state.bound(2, [INFINITE])) == [(0, 20)]


def test_a_slice_does_not_wait_for_itself() -> None:
    state = queue(2)
    state.bound(0, [5])
    assert written(state.append(0, block_at(20), b"")) == [(0, 20)]


# proves G8
def test_a_lane_waits_for_the_lanes_before_it_and_never_for_those_after() -> None:
    state = queue(2, 2)
    state.bound(1, [7, INFINITE])
    assert written(state.append(0, block_at(1, lane=1), b"")) == []
    assert written(state.append(0, block_at(6), b"")) == [(0, 6)]
    assert written(state.bound(1, [INFINITE, 0])) == []
    assert written(state.append(0, block_at(9), b"")) == [(0, 9)]
    assert written(state.bound(1, [INFINITE, 2])) == [(1, 1)]


def test_two_slices_never_wait_for_each_other() -> None:
    state = queue(2, idle=False)
    state.bound(0, [30])
    state.bound(1, [20])
    assert written(state.append(0, block_at(30), b"")) == []
    assert written(state.append(1, block_at(20), b"")) == [(0, 20)]
    # Slice 1 has more, above what Slice 0 has sent.
    assert written(state.append(1, block_at(40), b"")) == [(0, 30)]
    assert written(state.bound(0, [INFINITE])) == [(0, 40)]


# proves G8
@pytest.mark.parametrize("seed", range(100))
def test_with_true_bounds_everything_is_written_in_order(seed: int) -> None:
    rng = Random(seed)
    slices, lanes = rng.randint(1, 4), rng.randint(1, 2)
    state = queue(slices, lanes, idle=False)
    todo = [
        [sorted(rng.randrange(100) for _ in range(rng.randint(0, 6))) for _ in range(lanes)]
        for _ in range(slices)
    ]
    everything = sorted(
        (lane, low) for one in todo for lane, lows in enumerate(one) for low in lows
    )
    found: list[tuple[int, int]] = []

    def announce(slice: int) -> None:
        bounds = [lows[0] if lows else INFINITE for lows in todo[slice]]
        found.extend(written(state.bound(slice, bounds)))

    for slice in range(slices):
        announce(slice)
    while busy := [(s, n) for s, one in enumerate(todo) for n, lows in enumerate(one) if lows]:
        slice, lane = rng.choice(busy)
        low = todo[slice][lane][0]
        found.extend(written(state.append(slice, block_at(low, lane), b"")))
        todo[slice][lane].pop(0)
        if rng.random() < 0.7:
            announce(slice)
    for slice in range(slices):
        announce(slice)
    assert sorted(found) == everything
    for lane in range(lanes):
        assert [each for each in found if each[0] == lane] == [
            e for e in everything if e[0] == lane
        ]


# proves G6
def test_rollbacks_are_written_in_their_place_and_commits_are_not() -> None:
    state = queue(2)
    state.bound(1, [5])
    rollback = ended(1, 10, 10, committed=False)
    assert state.append(0, block_at(10), b"") == []
    assert state.end(0, 0, [rollback, ended(2, 1, 9, committed=True)]) == []
    assert state.append(0, block_at(11), b"") == []
    effects = state.bound(1, [INFINITE])
    assert [type(e) for e in effects] == [WriteBlock, WriteRetraction, WriteBlock, SendGrant]
    assert effects[1] == WriteRetraction((rollback,))
    assert state.end(0, 0, [ended(1, 11, 11, committed=True)]) == []


# proves G12
def test_a_stop_is_written_after_the_blocks_of_its_lane_and_what_it_stops_pins_nothing() -> None:
    state = QueueState(2, 2, 1, ROOMY)
    for slice in range(2):
        state.bound(slice, [INFINITE, INFINITE])
    state.bound(1, [INFINITE, 5])
    assert state.append(0, block_at(10, lane=1), b"") == []
    assert state.stop(0, 1, [P], 7) == []
    effects = state.bound(1, [INFINITE, INFINITE])
    assert [type(e) for e in effects] == [WriteBlock, WriteStop]
    assert effects[1] == WriteStop((P,), 7)
    assert "pinned" not in state.reason()


# proves G7
def test_a_flush_is_answered_when_all_before_it_is_written_and_synced() -> None:
    state = queue(2, 2)
    state.bound(1, [5, INFINITE])
    state.append(0, block_at(10, lane=1), b"")
    assert state.flush(0, 1, 1) == []
    assert written(state.append(0, block_at(4), b"")) == [(0, 4)]
    effects = state.bound(1, [INFINITE, INFINITE])
    assert [type(e) for e in effects] == [WriteBlock, Sync, SendGrant]
    assert state.synced(effects[1].number) == [SendFlushed(0, 1)]  # type: ignore[union-attr]


def test_a_flush_does_not_wait_for_what_came_after_it() -> None:
    state = queue(2)
    state.append(0, block_at(4), b"")
    state.bound(1, [5])
    effects = state.flush(0, 0, 1)
    state.append(0, block_at(10), b"")
    assert effects == [Sync(0)]
    assert state.synced(0) == [SendFlushed(0, 1)]


# proves G11
def test_a_flush_waits_for_its_own_lane_only() -> None:
    """Another Slice has a backlog in lane 0, and the blocks of this one in lane 1 wait for it."""
    state = queue(2, 2)
    state.bound(0, [INFINITE, INFINITE])
    state.bound(1, [5, INFINITE])
    state.append(0, block_at(10, lane=1), b"")
    assert state.flush(0, 1, 7) == []
    assert state.flush(0, 0, 8) == [SendFlushed(0, 8)]
    effects = state.bound(1, [INFINITE, INFINITE])
    assert [e for e in effects if isinstance(e, Sync)] == [Sync(0)]
    assert state.synced(0) == [SendFlushed(0, 7)]


def test_one_sync_serves_the_flushes_of_all_slices() -> None:
    state = queue(3)
    state.bound(2, [5])
    for slice in (0, 1):
        state.append(slice, block_at(10), b"")
        assert state.flush(slice, 0, 7) == []
    effects = state.bound(2, [INFINITE])
    assert [e for e in effects if isinstance(e, Sync)] == [Sync(0)]
    assert state.flush(2, 0, 1) == []
    assert state.synced(0) == [SendFlushed(0, 7), SendFlushed(1, 7), SendFlushed(2, 1)]


def test_a_flush_needs_no_sync_while_everything_is_durable() -> None:
    state = queue(2)
    assert state.flush(0, 0, 1) == [SendFlushed(0, 1)]
    state.append(0, block_at(10), b"")
    assert state.flush(0, 0, 2) == [Sync(0)]
    state.synced(0)
    assert state.flush(1, 0, 1) == [SendFlushed(1, 1)]


def write_block(state: QueueState) -> None:
    state.append(0, block_at(10), b"")


def write_retraction(state: QueueState) -> None:
    state.end(0, 0, [ended(1, 10, 10, committed=False)])


def write_stop(state: QueueState) -> None:
    state.stop(0, 0, [P], 0)


@pytest.mark.parametrize("write", [write_block, write_retraction, write_stop])
def test_a_flush_covers_what_was_written_while_a_sync_is_under_way(
    write: Callable[[QueueState], None],
) -> None:
    state = queue()
    state.append(0, block_at(4), b"")
    assert state.flush(0, 0, 1) == [Sync(0)]
    write(state)
    assert state.flush(0, 0, 2) == [Sync(1)]
    assert state.synced(0) == [SendFlushed(0, 1)]
    assert state.synced(1) == [SendFlushed(0, 2)]


# proves G12
def test_credit_comes_back_when_a_block_is_written() -> None:
    state = queue(2, 2)
    state.bound(1, [5, INFINITE])
    size = block_bytes(block_at(10), b"body")
    assert state.append(0, block_at(10), b"body") == []
    effects = state.bound(1, [INFINITE, INFINITE])
    assert effects[1:] == [SendGrant(0, 0, size)]
    assert state.space.held_bytes == size


# proves G12
def test_at_the_soft_limit_credit_is_kept_until_something_is_released() -> None:
    size = block_bytes(block_at(10), b"x" * 100)
    state = QueueState(1, 1, 2 * size, 10 * size)
    body = b"x" * 100
    assert state.append(0, block_at(10), body)[1:] == [SendGrant(0, 0, size)]
    assert state.reason() == ""
    assert written(second := state.append(0, block_at(11), body)) == [(0, 11)]
    assert second[1:] == []
    assert state.reason() == (
        "the Queue is over its soft limit of 0.0 MiB, 0.0 MiB pinned by producer 000000000001"
        " in place 12884901888"
    )
    scan(state, size, size)
    assert close(state, 0) == [GiveBack(1), SendGrant(0, 0, size)]
    assert state.reason() == ""


# proves G12
def test_a_starving_consumer_gets_credit_beyond_the_soft_limit() -> None:
    size = block_bytes(block_at(10), b"x" * 100)
    state = QueueState(1, 1, size, 3 * size)
    assert state.append(0, block_at(10), b"x" * 100)[1:] == []
    assert state.starve(True, 0) == [SendGrant(0, 0, size)]
    assert state.append(0, block_at(11), b"x" * 100)[1:] == [SendGrant(0, 0, size)]
    assert state.starve(False, 0) == []
    assert state.append(0, block_at(12), b"x" * 100)[1:] == []


# proves G12
def test_a_starving_consumer_gets_what_is_flushed_before_more_credit() -> None:
    size = block_bytes(block_at(10), b"x" * 100)
    state = QueueState(1, 1, size, 3 * size)
    state.starve(True, 0)
    assert state.append(0, block_at(10), b"x" * 100)[1:] == [SendGrant(0, 0, size)]
    assert state.flush(0, 0, 1) == [Sync(0)]
    assert state.append(0, block_at(11), b"x" * 100)[1:] == []
    assert state.synced(0) == [SendFlushed(0, 1), SendGrant(0, 0, size)]


# proves G12
@pytest.mark.parametrize(
    ("last_made", "released", "starves"),
    [(0, 0, True), (1, 0, True), (1, 1, True), (2, 0, False), (2, 1, True), (9, 7, False)],
)
def test_a_consumer_does_not_starve_that_has_checkpoints_to_release_but_the_last(
    last_made: int, released: int, starves: bool
) -> None:
    size = block_bytes(block_at(10), b"x" * 100)
    state = QueueState(1, 1, size, 3 * size)
    state.append(0, block_at(10), b"x" * 100)
    for number in range(1, last_made + 1):
        state.space.read(number, [])
    state.space.release(released)
    assert state.space_changed() == []
    assert (state.starve(True, last_made) == [SendGrant(0, 0, size)]) is starves
    if not starves:
        state.space.release(last_made - 1)
        assert state.space_changed() == [SendGrant(0, 0, size)]


# proves G12
def test_a_slice_that_is_slow_to_tell_does_not_take_back_the_last_checkpoint() -> None:
    """Both Slices pass on each message of the Session, and one may be several behind."""
    size = block_bytes(block_at(10), b"x" * 100)
    state = QueueState(2, 1, size, 3 * size)
    state.bound(1, [INFINITE])
    state.append(0, block_at(10), b"x" * 100)
    assert state.starve(False, 2) == []
    assert state.starve(True, 1) == [], "checkpoint 1 is there to be released"
    state.space.read(1, [])
    state.space.release(1)
    assert state.space_changed() == [SendGrant(0, 0, size)]


HARD = 1600
SOFT = 800
PORTION = HARD // 16
"""How much the Queue copies at a time."""


def holding(*sizes: int) -> QueueState:
    """A Queue with open blocks of these sizes, which a reader has scanned."""
    state = QueueState(1, 1, SOFT, HARD)
    for low, size in enumerate(sizes):
        state.append(0, block_at(low), bytes(size - block_bytes(block_at(low), b"")))
    scan(state, *sizes)
    assert state.space.held_bytes == sum(sizes)
    return state


# proves G12
@pytest.mark.parametrize(
    ("unneeded_bytes", "open_bytes", "copies"),
    [
        (100, 50, False),
        (101, 50, True),
        (200, 200, False),
        (201, 200, True),
        (400, 700, False),
        (401, 700, True),
    ],
)
def test_open_blocks_are_copied_once_that_gives_back_more_than_it_costs(
    unneeded_bytes: int, open_bytes: int, copies: bool
) -> None:
    """But the Queue copies nothing to get little back, and always copies to get much back."""
    state = holding(open_bytes, unneeded_bytes)
    assert (CopyBlocks({0: 0}) in close(state, 1)) is copies


# proves G12
def test_one_portion_is_copied_at_a_time() -> None:
    state = holding(PORTION, 50, 300)
    assert close(state, 2) == [CopyBlocks({0: 0})]
    assert state.space.held_bytes == 450 + PORTION
    assert state.space_changed() == []
    state.copies_written({0: 3})
    assert state.copies_durable() == [GiveBack(1), CopyBlocks({1: 1})]
    state.copies_written({1: 4})
    assert state.copies_durable() == [GiveBack(3)]
    state.validate()
    assert state.space.held_bytes == PORTION + 50


# proves G12
def test_what_is_not_needed_and_what_is_being_copied_do_not_count() -> None:
    state = holding(200, 600)
    assert state.space.needed_bytes == SOFT
    assert "soft limit" in state.reason()
    assert [type(each) for each in close(state, 1)] == [CopyBlocks, SendGrant]
    assert (state.space.held_bytes, state.space.needed_bytes) == (1000, 200)
    assert state.reason() == ""


# proves G12
def test_a_disk_that_is_full_of_what_is_not_needed_fails_nobody_and_takes_no_more() -> None:
    state = holding(900, 390, 110)
    state.starve(True, 0)
    assert close(state, 1) == [], "copying would cost more than it gives back"
    # Now the Queue must copy: without what it keeps in vain there is room.
    effects = state.append(0, block_at(3), bytes(200))
    assert written(effects) == [(0, 3)]
    assert effects[1:] == [CopyBlocks({0: 0})]
    assert state.space.held_bytes > HARD
    assert written(more := state.append(0, block_at(4), b"")) == [(0, 4)]
    assert more[1:] == [], "no credit meanwhile"
    state.copies_written({0: 5})
    assert [type(each) for each in state.copies_durable()] == [GiveBack, SendGrant]
    state.validate()


# proves G12, G13
def test_at_the_hard_limit_it_fails_and_names_who_pins_most() -> None:
    state = QueueState(1, 1, 1 * MIB, 3 * MIB)
    state.starve(True, 0)
    state.append(0, block_at(10, producer=1), bytes(MIB // 2))
    state.append(0, block_at(11, producer=0xABC), bytes(MIB))
    state.append(0, block_at(12, producer=2), bytes(MIB))
    state.end(0, 0, [ended(2, 12, 12, committed=True)])
    with pytest.raises(StorageError) as failed:
        state.append(0, block_at(13, producer=0xABC), bytes(MIB))
    assert str(failed.value) == (
        "the Queue is over its hard limit of 3.0 MiB,"
        f" 2.0 MiB pinned by producer 000000000abc in place {P};"
        " raise queue_hard_bytes or make the transaction smaller: a retry will not help"
    )


# proves G12, G13
@pytest.mark.parametrize(
    ("sizes", "shown", "released", "error", "message"),
    [
        (
            [2 * MIB],
            [[0]],
            0,
            QueueFullError,
            "2.0 MiB in checkpoints that are not released, 1.1 MiB pinned by producer 000000000001"
            f" in place {P}; release each checkpoint once its documents are stored, and try again",
        ),
        (
            [MIB // 10, 2 * MIB - MIB // 10],
            [[0]],
            0,
            QueueFullError,
            "0.1 MiB in checkpoints that are not released, 1.9 MiB of transactions that have ended"
            " and that no checkpoint shows yet, 1.1 MiB pinned by producer 000000000001"
            f" in place {P}; try again once the journals that these transactions wait for can be"
            " read",
        ),
        (
            [MIB // 10, MIB, MIB - MIB // 10],
            [[1], [0]],
            1,
            StorageError,
            "0.1 MiB in checkpoints that are not released, 1.1 MiB pinned by producer 000000000001"
            f" in place {P}; raise queue_hard_bytes or make the transaction smaller: a retry will"
            " not help",
        ),
    ],
)
def test_at_the_hard_limit_it_says_what_the_consumer_holds_and_whether_a_retry_helps(
    sizes: list[int],
    shown: list[list[int]],
    released: int,
    error: type[StorageError],
    message: str,
) -> None:
    """Committed documents are withheld, or were shown with open ones beside them."""
    state = QueueState(1, 1, 1 * MIB, 3 * MIB)
    for low, size in enumerate(sizes):
        state.append(0, block_at(low, producer=2), bytes(size - block_bytes(block_at(low), b"")))
    state.end(0, 0, [ended(2, 0, 9, committed=True)])
    scan(state, *sizes)
    for number, positions in enumerate(shown, 1):
        state.space.read(number, positions)
    state.space.release(released)
    state.space_changed()
    with pytest.raises(StorageError) as failed:
        state.append(0, block_at(11, producer=1), bytes(MIB + MIB // 8))
    assert type(failed.value) is error
    assert str(failed.value) == f"the Queue is over its hard limit of 3.0 MiB, {message}"


def test_a_full_queue_says_that_its_checkpoints_are_not_read() -> None:
    state = holding(900)
    state.starve(True, 5)
    for number in (1, 2):
        state.space.read(number, [])
    state.space.release(2)
    assert ", checkpoints 3 to 5 are not read" in state.reason()
    for number in (3, 4):
        state.space.read(number, [])
    assert "not read" not in state.reason(), "the consumer may be about to read the last one"


def test_a_retry_helps_if_the_rest_fits_exactly_once_checkpoints_are_released() -> None:
    overhead_bytes = block_bytes(block_at(10), b"")
    state = QueueState(1, 1, MIB, 3 * MIB)
    state.append(0, block_at(10), bytes(2 * MIB - overhead_bytes))
    scan(state, 2 * MIB)
    state.space.read(1, [0])
    with pytest.raises(QueueFullError, match="release each checkpoint"):
        state.append(0, block_at(11), bytes(3 * MIB - overhead_bytes))


def test_what_a_block_of_several_pins_is_shared_by_their_rows() -> None:
    state = QueueState(1, 1, MIB, 100 * MIB)
    state.append(0, head((P, 1, 1, 30), (P, 2, 1, 10)), bytes(4 * MIB))
    assert "3.0 MiB pinned by producer 000000000001" in state.reason()
    state.end(0, 0, [ended(1, 1, 30, committed=False)])
    assert "1.0 MiB pinned by producer 000000000002" in state.reason()


@pytest.mark.parametrize("count", ["open_bytes", "shown_bytes", "written_bytes", "scanned_to"])
def test_a_count_that_is_wrong_does_not_validate(count: str) -> None:
    state = holding(100, 200)
    state.space.read(1, [0])
    state.validate()
    setattr(state.space, count, 1)
    with pytest.raises(AssertionError):
        state.validate()


def test_credit_that_is_kept_for_no_reason_does_not_validate() -> None:
    state = QueueState(1, 1, 50, ROOMY)
    state.append(0, block_at(1), bytes(100))
    state.validate()
    state._soft_bytes = ROOMY
    with pytest.raises(AssertionError, match="keeps credit for no reason"):
        state.validate()
