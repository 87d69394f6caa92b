"""The coordinator at work: its threads, and what callers get."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from headrace.errors import CommitOutcome, InDoubtError, QueueFullError, StorageError, UsageError
from headrace.ingest.actor import delta_batch
from headrace.ingest.contract import Epoch
from headrace.ingest.snapshot_channel import SnapshotChannel
from tests.ingest.conftest import LIMIT_S, Start, until
from tests.ingest.memory_store import MapDelta, MapHandler, rows_of


def test_a_flush_makes_what_was_written_before_durable(handler: MapHandler, start: Start) -> None:
    handle = start()
    assert handle.write(MapDelta({"a": 1})) == 1
    assert handle.write_all([MapDelta({"a": 2}), MapDelta({"b": 3})]) == 3
    assert handle.snapshot() == {}
    assert handle.flush(timeout_s=LIMIT_S) == 3
    assert handle.snapshot() == {"a": 2, "b": 3}
    assert handler.synced
    assert handle.write_durable(MapDelta({"c": 1}), LIMIT_S) == 4
    handle.shutdown(LIMIT_S)
    with pytest.raises(UsageError, match="the store is closed"):
        handle.write(MapDelta({"a": 1}))
    handle.shutdown(LIMIT_S)


def test_a_view_shows_writes_that_are_not_flushed(handler: MapHandler, start: Start) -> None:
    handle = start()
    handler.flushes_allowed.clear()
    handle.write(MapDelta({"a": 1, "b": 1}))
    with pytest.raises(InDoubtError, match=r"epoch 1 is not durable yet.*flush\(1\)") as raised:
        handle.flush(timeout_s=0.0)
    handle.write(MapDelta({"b": 2}))
    view = handle.view()
    handle.write(MapDelta({"b": 3}))
    assert (view.flushed, view.epoch, len(view.frozen)) == (0, 2, 1)
    assert rows_of(view.deltas) == {"a": 1, "b": 2}
    assert rows_of(handle.view().deltas) == {"a": 1, "b": 3}
    handler.flushes_allowed.set()
    assert raised.value.outcome(LIMIT_S) is CommitOutcome.COMMITTED
    assert handle.snapshot() == {"a": 1, "b": 1}


def test_a_write_that_finds_no_room_is_handed_back(handler: MapHandler, start: Start) -> None:
    handle = start(pending_bytes_max=30)
    handler.syncs_allowed.clear()
    handle.write_all([MapDelta({"a": 1}), MapDelta({"b": 1}), MapDelta({"c": 1})])
    delta = MapDelta({"d": 1})
    with pytest.raises(QueueFullError, match="the store: a write of 10 bytes finds no room"):
        handle.write(delta)
    assert delta.rows == {"d": 1}
    handler.syncs_allowed.set()
    assert handle.write(delta, LIMIT_S) == 4


def test_whoever_begins_to_wait_for_room_has_what_is_pending_flushed(start: Start) -> None:
    """When it found no room, a flush began; when it waits, others have taken what that made."""
    handle = start(pending_bytes_max=30, flush_bytes=30)
    handle.write(MapDelta({"a": 1, "b": 1}))
    handle.view()
    until(lambda: bool(vars(handle.actor._work)["_waiters"]))
    batch = delta_batch([MapDelta({"c": 1, "d": 1})])
    with handle.actor.in_line(batch) as ticket:
        ticket.granted.result(LIMIT_S)
        assert handle.actor.write_all(batch, ticket) == 2


@pytest.mark.parametrize("writes", [["cd"], ["c", "d"]])
def test_what_finds_no_room_has_what_is_pending_flushed(start: Start, writes: list[str]) -> None:
    handle = start(pending_bytes_max=30, flush_bytes=30)
    handle.write(MapDelta({"a": 1, "b": 1}))
    until(lambda: handle.metrics().pending_bytes == 20)
    until(lambda: bool(vars(handle.actor._work)["_waiters"]))
    deltas = [MapDelta(dict.fromkeys(keys, 1)) for keys in writes]
    with pytest.raises(QueueFullError):
        handle.write(deltas[0]) if len(deltas) == 1 else handle.write_all(deltas)
    until(lambda: handle.metrics().durable_epoch == 1)


def test_writes_are_merged_without_being_asked_when_they_are_many(start: Start) -> None:
    handle = start(pending_bytes_max=1000, flush_bytes=40)
    handle.write(MapDelta({"a": 1}))
    until(lambda: handle.metrics().pending_bytes == 10)
    until(lambda: bool(vars(handle.actor._work)["_waiters"]))
    for number in range(9):
        handle.write(MapDelta({f"{number}": 1}))
    until(lambda: handle.metrics().durable_epoch >= 4)


def test_the_timer_runs_for_what_was_merged_during_a_flush(
    handler: MapHandler, start: Start
) -> None:
    handle = start(flush_interval_s=0.5)
    handler.flushes_allowed.clear()
    handle.write(MapDelta({"a": 1}))
    with pytest.raises(InDoubtError):
        handle.flush(timeout_s=0.0)
    handle.write(MapDelta({"b": 1}))
    handle.view()
    handler.flushes_allowed.set()
    until(lambda: handle.metrics().durable_epoch == 2)


def test_a_flush_that_gave_up_is_kept_nowhere(handler: MapHandler, start: Start) -> None:
    handle = start()
    handler.syncs_allowed.clear()
    handle.write(MapDelta({"a": 1}))
    with pytest.raises(InDoubtError):
        handle.flush(timeout_s=0.0)
    handle.view()
    assert handle.metrics().waiters == 0


def test_of_two_ends_the_first_one_is_told() -> None:
    channel = SnapshotChannel[dict[str, int]]({})
    channel.end(StorageError("the disk is full", do="free some space"))
    channel.end(UsageError("the store is closed", do="open it again"))
    with pytest.raises(StorageError, match="the disk is full"):
        channel.after(Epoch(0))


def test_whoever_leaves_the_line_makes_room_for_the_next(handler: MapHandler, start: Start) -> None:
    handle = start(pending_bytes_max=30)
    handler.syncs_allowed.clear()
    handle.write(MapDelta({"a": 1, "b": 1}))
    with pytest.raises(InDoubtError):
        handle.flush(timeout_s=0.0)
    until(lambda: handle.metrics().frozen_bytes == 20)
    large, small = ([MapDelta({key: 1}) for key in keys] for keys in ("cd", "e"))
    with ExitStack() as line:
        line.enter_context(handle.actor.in_line(delta_batch(large)))
        with handle.actor.in_line(delta_batch(small)) as ticket:
            assert not ticket.granted.done()
            until(lambda: bool(vars(handle.actor._work)["_waiters"]))
            line.close()
            assert ticket.granted.done()


@pytest.mark.parametrize("epoch", [-1, 2])
def test_an_epoch_that_no_write_has_is_not_waited_for(start: Start, epoch: int) -> None:
    handle = start()
    handle.write(MapDelta({"a": 1}))
    with pytest.raises(UsageError, match=f"epoch {epoch} was not given to any write, the last is"):
        handle.flush(Epoch(epoch), LIMIT_S)


def test_a_call_may_wait_for_ever(handler: MapHandler, start: Start) -> None:
    handle = start(pending_bytes_max=20)
    handler.syncs_allowed.clear()
    handle.write(MapDelta({"a": 1, "b": 1}))
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(handle.write_durable, MapDelta({"c": 1}), math.inf)
        shown = threads.submit(handle.subscribe().next, math.inf)
        handler.syncs_allowed.set()
        assert written.result(LIMIT_S) == 2
        assert shown.result(LIMIT_S)
    handle.shutdown(math.inf)


def test_a_subscriber_that_gave_up_is_kept_nowhere(start: Start) -> None:
    handle = start()
    subscription = handle.subscribe()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            subscription.next(0.001)
    assert not handle.actor.snapshots._waiting


def test_a_failed_flush_reaches_everybody(handler: MapHandler, start: Start) -> None:
    handle = start()
    handler.flush_error = OSError(28, "No space left on device")
    handle.write(MapDelta({"a": 1}))
    for call in (
        handle.flush,
        handle.view,
        handle.shutdown,
        lambda: handle.write(MapDelta({"b": 1})),
        lambda: handle.flush(Epoch(1)),
    ):
        with pytest.raises(StorageError, match="a flush failed: No space left") as raised:
            call()
        assert raised.value.__cause__ is handler.flush_error
    assert handle.snapshot() == {}, "the last one that was published"
