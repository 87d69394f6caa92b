"""What a Queue writes, grants and acknowledges, and when."""

from __future__ import annotations

from random import Random

import pytest

from headrace.errors import QueueFullError, StorageError
from headrace.frontier import place
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.space import Account
from headrace.shuffle.queue.state import (
    Effect,
    Flushed,
    Grant,
    Move,
    QueueState,
    Retract,
    Stop,
    Sync,
    WriteBlock,
)
from tests.shuffle.builders import head

MIB = 1 << 20
ROOMY = 1 << 40
P = place(3, 0)


def at(low: int, lane: int = 0, producer: int = 1) -> BlockHead:
    return head((P, producer, low, low), lane=lane)


def queue(slices: int = 1, lanes: int = 1, *, idle: bool = True) -> QueueState:
    """With plenty of room; `idle`: every Slice has announced that it has nothing."""
    state = QueueState(slices, lanes, ROOMY, 2 * ROOMY)
    if idle:
        for slice in range(slices):
            state.bound(slice, [INFINITE] * lanes)
    return state


def written(effects: list[Effect]) -> list[tuple[int, int]]:
    """Lane and low of the blocks."""
    return [(e.head.lane, e.head.low) for e in effects if isinstance(e, WriteBlock)]


def ended(producer: int, first: int, last: int, *, committed: bool) -> SpanEnd:
    return SpanEnd(P, producer, first, last, committed, last if committed else 0)


# proves G8
def test_a_block_waits_for_slices_that_may_have_something_before_it() -> None:
    state = queue(2, idle=False)
    assert written(state.append(0, at(20), b"")) == []
    assert written(state.bound(1, [15])) == []
    assert written(state.append(1, at(15), b"")) == [(0, 15)]
    assert written(state.bound(1, [20])) == [(0, 20)]


def test_before_every_slice_has_announced_nothing_is_written() -> None:
    state = queue(3, idle=False)
    assert written(state.append(0, at(20), b"")) == []
    assert written(state.bound(1, [INFINITE])) == []
    assert written(state.bound(2, [INFINITE])) == [(0, 20)]


def test_a_slice_does_not_wait_for_itself() -> None:
    state = queue(2)
    state.bound(0, [5])
    assert written(state.append(0, at(20), b"")) == [(0, 20)]


# proves G8
def test_a_lane_waits_for_the_lanes_before_it_and_never_for_those_after() -> None:
    state = queue(2, 2)
    state.bound(1, [7, INFINITE])
    assert written(state.append(0, at(1, lane=1), b"")) == []
    assert written(state.append(0, at(6), b"")) == [(0, 6)]
    assert written(state.bound(1, [INFINITE, 0])) == []
    assert written(state.append(0, at(9), b"")) == [(0, 9)]
    assert written(state.bound(1, [INFINITE, 2])) == [(1, 1)]


def test_two_slices_never_wait_for_each_other() -> None:
    state = queue(2, idle=False)
    state.bound(0, [30])
    state.bound(1, [20])
    assert written(state.append(0, at(30), b"")) == []
    assert written(state.append(1, at(20), b"")) == [(0, 20)]
    # Slice 1 has more, above what Slice 0 has sent.
    assert written(state.append(1, at(40), b"")) == [(0, 30)]
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
        found.extend(written(state.append(slice, at(low, lane), b"")))
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
    assert state.append(0, at(10), b"") == []
    assert state.end(0, 0, [rollback, ended(2, 1, 9, committed=True)]) == []
    assert state.append(0, at(11), b"") == []
    effects = state.bound(1, [INFINITE])
    assert [type(e) for e in effects] == [WriteBlock, Retract, WriteBlock, Grant]
    assert effects[1] == Retract((rollback,))
    assert state.end(0, 0, [ended(1, 11, 11, committed=True)]) == []


# proves G12
def test_a_stop_is_written_after_the_blocks_of_its_lane_and_what_it_stops_pins_nothing() -> None:
    state = QueueState(2, 2, 1, ROOMY)
    for slice in range(2):
        state.bound(slice, [INFINITE, INFINITE])
    state.bound(1, [INFINITE, 5])
    assert state.append(0, at(10, lane=1), b"") == []
    assert state.stop(0, 1, [P], 7) == []
    effects = state.bound(1, [INFINITE, INFINITE])
    assert [type(e) for e in effects] == [WriteBlock, Stop]
    assert effects[1] == Stop((P,), 7)
    assert "pinned" not in state.reason()


# proves G7
def test_a_flush_is_answered_when_all_before_it_is_written_and_synced() -> None:
    state = queue(2, 2)
    state.bound(1, [5, INFINITE])
    state.append(0, at(10, lane=1), b"")
    assert state.flush(0, 1, 1) == []
    assert written(state.append(0, at(4), b"")) == [(0, 4)]
    effects = state.bound(1, [INFINITE, INFINITE])
    assert [type(e) for e in effects] == [WriteBlock, Sync, Grant]
    assert state.synced(effects[1].number) == [Flushed(0, 1)]  # type: ignore[union-attr]


def test_a_flush_does_not_wait_for_what_came_after_it() -> None:
    state = queue(2)
    state.bound(1, [5])
    effects = state.flush(0, 0, 1)
    state.append(0, at(10), b"")
    assert effects == [Sync(0)]
    assert state.synced(0) == [Flushed(0, 1)]


# proves G11
def test_a_flush_waits_for_its_own_lane_only() -> None:
    """Another Slice has a backlog in lane 0; what this one has in lane 1 waits for it."""
    state = queue(2, 2)
    state.bound(0, [INFINITE, INFINITE])
    state.bound(1, [5, INFINITE])
    state.append(0, at(10, lane=1), b"")
    assert state.flush(0, 1, 7) == []
    assert state.flush(0, 0, 8) == [Sync(0)]
    assert state.synced(0) == [Flushed(0, 8)]
    effects = state.bound(1, [INFINITE, INFINITE])
    assert [e for e in effects if isinstance(e, Sync)] == [Sync(1)]
    assert state.synced(1) == [Flushed(0, 7)]


def test_one_sync_serves_the_flushes_of_all_slices() -> None:
    state = queue(3)
    state.bound(2, [5])
    for slice in (0, 1):
        state.append(slice, at(10), b"")
        assert state.flush(slice, 0, 7) == []
    effects = state.bound(2, [INFINITE])
    assert [e for e in effects if isinstance(e, Sync)] == [Sync(0)]
    assert state.flush(2, 0, 1) == [Sync(1)]
    assert state.synced(0) == [Flushed(0, 7), Flushed(1, 7)]
    assert state.synced(1) == [Flushed(2, 1)]


# proves G12
def test_credit_comes_back_when_a_block_is_written() -> None:
    state = queue(2, 2)
    state.bound(1, [5, INFINITE])
    size = block_bytes(at(10), b"body")
    assert state.append(0, at(10), b"body") == []
    effects = state.bound(1, [INFINITE, INFINITE])
    assert effects[1:] == [Grant(0, 0, size)]
    assert state.held_bytes == size


# proves G12
def test_at_the_soft_limit_credit_is_kept_until_something_is_released() -> None:
    size = block_bytes(at(10), b"x" * 100)
    state = QueueState(1, 1, 2 * size, 10 * size)
    body = b"x" * 100
    assert state.append(0, at(10), body)[1:] == [Grant(0, 0, size)]
    assert state.reason() == ""
    assert written(second := state.append(0, at(11), body)) == [(0, 11)]
    assert second[1:] == []
    assert state.reason() == (
        "queue over 0.0 MiB, 0.0 MiB pinned by producer 000000000001 in place 12884901888"
    )
    assert state.needs(Account(size)) == [Grant(0, 0, size)]
    assert state.reason() == ""


# proves G12
def test_a_starving_consumer_gets_credit_beyond_the_soft_limit() -> None:
    size = block_bytes(at(10), b"x" * 100)
    state = QueueState(1, 1, size, 3 * size)
    assert state.append(0, at(10), b"x" * 100)[1:] == []
    assert state.starve(True, 0) == [Grant(0, 0, size)]
    assert state.append(0, at(11), b"x" * 100)[1:] == [Grant(0, 0, size)]
    assert state.starve(False, 0) == []
    assert state.append(0, at(12), b"x" * 100)[1:] == []


# proves G12
def test_a_starving_consumer_gets_what_is_flushed_before_more_credit() -> None:
    size = block_bytes(at(10), b"x" * 100)
    state = QueueState(1, 1, size, 3 * size)
    state.starve(True, 0)
    assert state.append(0, at(10), b"x" * 100)[1:] == [Grant(0, 0, size)]
    assert state.flush(0, 0, 1) == [Sync(0)]
    assert state.append(0, at(11), b"x" * 100)[1:] == []
    assert state.synced(0) == [Flushed(0, 1), Grant(0, 0, size)]


# proves G12
@pytest.mark.parametrize(
    ("made", "released", "starves"),
    [(0, 0, True), (1, 0, True), (1, 1, True), (2, 0, False), (2, 1, True), (9, 7, False)],
)
def test_a_consumer_does_not_starve_that_has_checkpoints_to_release_but_the_last(
    made: int, released: int, starves: bool
) -> None:
    size = block_bytes(at(10), b"x" * 100)
    state = QueueState(1, 1, size, 3 * size)
    state.append(0, at(10), b"x" * 100)
    assert state.needs(Account(read=made, released=released)) == []
    assert (state.starve(True, made) == [Grant(0, 0, size)]) is starves
    if not starves:
        assert state.needs(Account(read=made, released=made - 1)) == [Grant(0, 0, size)]


HARD = 1600
SOFT = 800
MOVE = Move(HARD // 16)


def holding(*bodies: int) -> QueueState:
    """Blocks of so many bytes, of a consumer that does not starve."""
    state = QueueState(1, 1, SOFT, HARD)
    for low, size in enumerate(bodies):
        state.append(0, at(low), bytes(size - block_bytes(at(low), b"")))
    assert state.held_bytes == sum(bodies)
    return state


# proves G12
@pytest.mark.parametrize(
    ("account", "moves"),
    [
        (Account(unneeded_bytes=100, open_bytes=50), False),
        (Account(unneeded_bytes=101, open_bytes=50), True),
        (Account(unneeded_bytes=200, open_bytes=200), False),
        (Account(unneeded_bytes=201, open_bytes=200), True),
        (Account(unneeded_bytes=400, open_bytes=700), False),
        (Account(unneeded_bytes=401, open_bytes=700), True),
    ],
)
def test_open_blocks_are_moved_once_more_than_they_is_kept_for_them(
    account: Account, moves: bool
) -> None:
    """But not for little, and always for much."""
    assert (MOVE in holding(700).needs(account)) is moves


# proves G12
def test_one_portion_is_moved_at_a_time() -> None:
    state = holding(500)
    account = Account(unneeded_bytes=300, open_bytes=150)
    assert state.needs(account) == [MOVE]
    state.moving(100)
    assert state.held_bytes == 600
    assert state.needs(account) == []
    assert state.moved(account) == [MOVE]
    state.moving(50)
    assert state.moved(Account(given_back_bytes=450, open_bytes=150)) == []
    assert state.held_bytes == 200


# proves G12
def test_what_is_not_needed_and_what_is_being_moved_do_not_count() -> None:
    state = holding(700, 100)
    assert state.needed_bytes == SOFT
    assert "queue over" in state.reason()
    assert [type(each) for each in state.needs(Account(0, 300, 200))] == [Move, Grant]
    assert (state.held_bytes, state.needed_bytes) == (800, 500)
    state.moving(150)
    assert (state.held_bytes, state.needed_bytes) == (950, 500)
    assert state.reason() == ""


# proves G12
def test_a_disk_that_is_full_of_what_is_not_needed_fails_nobody_and_takes_no_more() -> None:
    state = holding(700, 700)
    state.starve(True, 0)
    assert state.needs(Account(0, 390, 900)) == [], "that would cost more than it gives back"
    # Now it must be: without what is kept in vain there is room.
    effects = state.append(0, at(2), bytes(200))
    assert written(effects) == [(0, 2)]
    assert effects[1:] == [MOVE]
    state.moving(100)
    assert state.held_bytes > HARD
    assert written(more := state.append(0, at(3), b"")) == [(0, 3)]
    assert more[1:] == [], "no credit meanwhile"
    grants = state.moved(Account(490, 0, 900))
    assert [type(each) for each in grants] == [Grant]


# proves G12, G13
def test_at_the_hard_limit_it_fails_and_names_who_pins_most() -> None:
    state = QueueState(1, 1, 1 * MIB, 3 * MIB)
    state.starve(True, 0)
    state.append(0, at(10, producer=1), bytes(MIB // 2))
    state.append(0, at(11, producer=0xABC), bytes(MIB))
    state.append(0, at(12, producer=2), bytes(MIB))
    state.end(0, 0, [ended(2, 12, 12, committed=True)])
    with pytest.raises(StorageError) as failed:
        state.append(0, at(13, producer=0xABC), bytes(MIB))
    assert str(failed.value) == (
        f"queue over its limit of 3.0 MiB, 2.0 MiB pinned by producer 000000000abc in place {P};"
        " a retry will not help: raise the limit, or make the transaction smaller"
    )


# proves G12, G13
@pytest.mark.parametrize(
    ("account", "error", "said"),
    [
        (
            Account(shown_bytes=2 * MIB, read=1),
            QueueFullError,
            "2.0 MiB in checkpoints that are not released, 1.1 MiB pinned by producer 000000000001"
            f" in place {P}; a retry helps, if checkpoints are released once their documents are"
            " stored",
        ),
        (
            Account(shown_bytes=MIB // 10, read=1),
            QueueFullError,
            "0.1 MiB in checkpoints that are not released, 1.9 MiB of transactions that ended, not"
            f" shown yet, 1.1 MiB pinned by producer 000000000001 in place {P}; a retry helps, if"
            " the journals that those wait for can be read by then",
        ),
        (
            Account(shown_bytes=MIB // 10, partly_bytes=MIB, read=1),
            StorageError,
            "0.1 MiB in checkpoints that are not released, 1.1 MiB pinned by producer 000000000001"
            f" in place {P}; a retry will not help: raise the limit, or make the transaction"
            " smaller",
        ),
    ],
)
def test_at_the_hard_limit_it_says_what_the_consumer_holds_and_whether_a_retry_helps(
    account: Account, error: type[StorageError], said: str
) -> None:
    """What is committed is withheld, or else was shown with what is open beside it."""
    state = QueueState(1, 1, 1 * MIB, 3 * MIB)
    state.append(0, at(10, producer=2), bytes(2 * MIB))
    state.end(0, 0, [ended(2, 10, 10, committed=True)])
    state.needs(account)
    with pytest.raises(StorageError) as failed:
        state.append(0, at(11, producer=1), bytes(MIB + MIB // 8))
    assert type(failed.value) is error
    assert str(failed.value) == f"queue over its limit of 3.0 MiB, {said}"


def test_a_full_queue_says_that_its_checkpoints_are_not_read() -> None:
    state = holding(900)
    state.starve(True, 5)
    state.needs(Account(read=2, released=2))
    assert ", checkpoints 3 to 5 not read" in state.reason()


def test_what_a_block_of_several_pins_is_shared_by_their_rows() -> None:
    state = QueueState(1, 1, MIB, 100 * MIB)
    state.append(0, head((P, 1, 1, 30), (P, 2, 1, 10)), bytes(4 * MIB))
    assert "3.0 MiB pinned by producer 000000000001" in state.reason()
    state.end(0, 0, [ended(1, 1, 30, committed=False)])
    assert "1.0 MiB pinned by producer 000000000002" in state.reason()
