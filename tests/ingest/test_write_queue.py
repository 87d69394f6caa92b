"""Which writes are taken, and what is handed back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import QueueFullError, StorageError, UsageError
from headrace.ingest.contract import Epoch
from headrace.ingest.write_queue import RoomTicket, WriteQueue
from headrace.settings import IngestSettings
from tests.ingest.memory_store import MapDelta

Queue = WriteQueue[MapDelta]


def queue_of(**limits: int) -> Queue:
    return WriteQueue(IngestSettings(**limits), "the store")


def delta_of(*keys: str) -> MapDelta:
    return MapDelta(dict.fromkeys(keys, 1))


def test_epochs_count_writes_from_one_on() -> None:
    queue = queue_of()
    assert [queue.add(delta_of("a")), queue.add(delta_of("b"))] == [1, 2]
    assert queue.add_all([delta_of("c"), delta_of("d", "e")], 30) == 4
    taken = queue.take()
    assert [len(delta.rows) for delta in taken.deltas] == [1, 1, 1, 2]
    assert taken.last == 4
    assert (queue.depth, queue.queued_bytes, queue.held_bytes) == (0, 0, 50)
    assert queue.add(delta_of("a")) == 5
    assert queue.take().last == 5


def test_an_empty_write_uses_up_no_epoch() -> None:
    queue = queue_of()
    assert queue.add(MapDelta()) == 0
    queue.add(delta_of("a"))
    assert queue.add(MapDelta()) == 1
    assert queue.add_all([], 0) == 1
    assert queue.depth == 1


def test_queued_and_held_bytes_count_together() -> None:
    queue = queue_of(pending_bytes_max=30)
    queue.add(delta_of("a"))
    queue.take()
    queue.add(delta_of("b"))
    with pytest.raises(QueueFullError) as raised:
        queue.add(delta_of("c", "d"))
    assert "20 bytes" in raised.value.what
    assert "1 writes of 10 bytes in the queue, 10 bytes that are not durable" in str(raised.value)
    assert queue.add(delta_of("c")) == 3
    queue.take()
    queue.held_bytes = 0
    assert queue.add(delta_of("d", "e", "f")) == 4


def test_commands_are_limited_too() -> None:
    queue = queue_of(commands_max=2)
    queue.add(delta_of("a"))
    with pytest.raises(QueueFullError):
        queue.add_all([delta_of("b"), delta_of("c")], 20)
    queue.add(delta_of("b"))
    with pytest.raises(QueueFullError):
        queue.add(delta_of("c"))
    queue.take()
    assert queue.add_all([delta_of("c"), delta_of("d")], 20) == 4


def test_a_refusal_changes_nothing_but_what_is_told_of_it() -> None:
    queue = queue_of(pending_bytes_max=10)
    queue.add(delta_of("a"))
    delta = delta_of("b")
    for _ in range(3):
        with pytest.raises(QueueFullError):
            queue.add(delta)
        with pytest.raises(QueueFullError):
            queue.add_all([delta], 10)
    assert (delta.rows, queue.last, queue.depth, queue.queued_bytes) == ({"b": 1}, 1, 1, 10)
    assert queue.refused == 6
    assert queue.take().is_short
    assert not queue.take().is_short


def test_a_write_above_a_limit_is_taken_when_nothing_else_counts() -> None:
    queue = queue_of(pending_bytes_max=20, commands_max=2)
    queue.add(delta_of("a"))
    with pytest.raises(QueueFullError):
        queue.add(delta_of("a", "b", "c"))
    queue.take()
    with pytest.raises(QueueFullError):
        queue.add_all([delta_of("a")] * 3, 30)
    queue.held_bytes = 0
    assert queue.add(delta_of("a", "b", "c")) == 2
    with pytest.raises(QueueFullError):
        queue.add(delta_of("a"))
    queue.take()
    queue.held_bytes = 0
    assert queue.add_all([delta_of("a")] * 3, 30) == 5


def test_no_small_write_takes_the_room_that_a_large_one_waits_for() -> None:
    queue = queue_of(pending_bytes_max=30)
    queue.add_all([delta_of("a"), delta_of("b")], 20)
    large, small = RoomTicket(1, 20, None), RoomTicket(1, 10, None)
    queue.wait_for_room(large)
    queue.wait_for_room(small)
    assert queue.grant() == []
    assert queue.take().is_short
    # There is room for ten bytes, but the twenty came first.
    with pytest.raises(QueueFullError, match="and 2 who wait for room"):
        queue.add(delta_of("c"))
    with pytest.raises(QueueFullError):
        queue.add_all([delta_of("c")], 10, small)
    queue.held_bytes = 10
    assert queue.grant() == [large]
    assert queue.grant() == [], "it is told once"
    assert queue.take().is_short, "the small one still waits"
    assert queue.add_all([delta_of("c", "d")], 20, large) == 3
    queue.leave(large)
    assert queue.grant() == []
    queue.take()
    queue.held_bytes = 0
    assert queue.grant() == [small]
    assert not queue.take().is_short
    queue.leave(small)
    assert queue.add(delta_of("e", "f", "g")) == 4


def test_whoever_fits_beside_those_who_wait_is_taken_at_once() -> None:
    queue = queue_of(pending_bytes_max=100, commands_max=4)
    queue.add(delta_of(*"abcdefghij"))
    tickets = [RoomTicket(1, 30, None), RoomTicket(1, 40, None)]
    for ticket in tickets:
        queue.wait_for_room(ticket)
    queue.take()
    queue.held_bytes = 0
    assert queue.grant() == tickets
    assert queue.add(delta_of(*"abc")) == 2
    with pytest.raises(QueueFullError):
        queue.add(delta_of("d"))
    assert queue.add_all([delta_of("d")], 40, tickets[1]) == 3
    queue.leave(tickets[1])
    assert queue.add_all([delta_of("d")], 30, tickets[0]) == 4
    queue.leave(tickets[0])
    assert (queue.depth, queue.queued_bytes, queue.waiting) == (3, 100, 0)


def test_a_place_in_line_that_is_given_up_is_free() -> None:
    queue = queue_of(pending_bytes_max=30, commands_max=2)
    queue.add_all([delta_of("a"), delta_of("b")], 20)
    waits, granted = RoomTicket(3, 10, None), RoomTicket(1, 100, None)
    queue.wait_for_room(waits)
    queue.wait_for_room(granted)
    queue.take()
    queue.held_bytes = 0
    assert queue.grant() == [waits], "three writes need the whole queue of two"
    queue.leave(waits)
    assert queue.grant() == [granted]
    queue.leave(granted)
    assert queue.add_all([delta_of("a"), delta_of("b")], 30) == 4


def test_whoever_begins_to_wait_asks_for_room_unless_there_is_some() -> None:
    queue = queue_of(pending_bytes_max=30)
    queue.add_all([delta_of("a"), delta_of("b")], 20)
    queue.take()
    fits, waits = RoomTicket(1, 10, None), RoomTicket(1, 10, None)
    queue.wait_for_room(fits)
    assert not queue.is_short
    queue.wait_for_room(waits)
    assert queue.is_short, "the room is the first one's"
    assert queue.grant() == [fits]


def test_a_place_in_line_may_be_given_up_before_it_is_taken() -> None:
    queue = queue_of(pending_bytes_max=30)
    queue.leave(RoomTicket(1, 30, None))
    assert queue.add(delta_of("a", "b", "c")) == 1


def test_those_who_wait_hear_of_a_failure() -> None:
    queue = queue_of(pending_bytes_max=10)
    queue.add(delta_of("a"))
    tickets = [RoomTicket(1, 10, None), RoomTicket(1, 10, None)]
    for ticket in tickets:
        queue.wait_for_room(ticket)
    queue.refuse(StorageError("the disk is full", do="free space"))
    assert queue.grant() == tickets
    for ticket in tickets:
        with pytest.raises(StorageError):
            queue.add_all([delta_of("b")], 10, ticket)
        queue.leave(ticket)
    late = RoomTicket(1, 10, None)
    queue.wait_for_room(late)
    assert queue.grant() == [late]


def test_after_a_failure_each_caller_gets_an_error_of_its_own() -> None:
    queue = queue_of()
    failure = StorageError("the disk is full", do="free space")
    failure.__cause__ = OSError(28, "No space left on device")
    queue.refuse(failure)
    calls: list[Callable[[], Epoch]] = [
        lambda: queue.add(delta_of("a")),
        lambda: queue.add_all([delta_of("a")], 10),
        lambda: queue.add(MapDelta()),
    ]
    raised = []
    for call in calls:
        with pytest.raises(StorageError, match="the disk is full; free space") as each:
            call()
        raised.append(each.value)
        assert each.value.__cause__ is failure.__cause__
    assert raised[0] is not raised[1]
    assert queue.last == 0


@pytest.mark.parametrize(("writes", "is_much"), [(24, False), (25, True)])
def test_a_quarter_of_the_commands_is_much(*, writes: int, is_much: bool) -> None:
    queue = queue_of(commands_max=100)
    queue.add_all([delta_of("a")] * writes, 10 * writes)
    assert queue.is_much is is_much


@pytest.mark.parametrize(("rows", "is_much"), [(4, False), (5, True)])
def test_a_quarter_of_the_bytes_of_a_flush_is_much(*, rows: int, is_much: bool) -> None:
    queue = queue_of(pending_bytes_max=1000, flush_bytes=200)
    queue.add(delta_of(*"abcdefg"[:rows]))
    assert queue.is_much is is_much


class CountedDelta(MapDelta):
    """Counts how often its size is asked for."""

    asked = 0

    @property
    def size_bytes(self) -> int:
        self.asked += 1
        return super().size_bytes


def test_a_write_asks_its_own_delta_for_its_size_and_no_other() -> None:
    queue = queue_of()
    first = CountedDelta({"a": 1})
    queue.add(first)
    for _ in range(100):
        queue.add(delta_of("b"))
    assert first.asked == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"commands_max": 0}, "commands_max must be at least 1, got 0"),
        ({"pending_bytes_max": 0}, "pending_bytes_max must be at least 1, got 0"),
        ({"flush_bytes": -1}, "flush_bytes must be from 0 to pending_bytes_max"),
        ({"flush_bytes": 11, "pending_bytes_max": 10}, "which is 10, got 11"),
        ({"flush_interval_s": 0.0}, "flush_interval_s must be above 0 and finite, got 0.0"),
        ({"flush_interval_s": float("inf")}, "got inf"),
        ({"flush_interval_s": float("nan")}, "got nan"),
    ],
)
def test_limits_that_make_no_sense_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        IngestSettings(**settings)


def test_a_flush_takes_a_quarter_of_the_limit_unless_told_otherwise() -> None:
    assert IngestSettings(pending_bytes_max=100).flush_at_bytes == 25
    assert IngestSettings(pending_bytes_max=1).flush_at_bytes == 1
    assert IngestSettings(pending_bytes_max=100, flush_bytes=70).flush_at_bytes == 70
    assert IngestSettings(commands_max=1, pending_bytes_max=1, flush_bytes=1)
