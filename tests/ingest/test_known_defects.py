"""What went wrong in other coordinators must not go wrong here. Each test says what holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import HeadraceError, QueueFullError, StorageError, UsageError
from headrace.ingest.contract import Epoch
from tests.ingest.conftest import LIMIT_S, Start, until
from tests.ingest.memory_store import MapDelta, MapHandler, rows_of

FULL = OSError(28, "No space left on device")


# proves G25
@pytest.mark.parametrize("part", ["flush", "sync"])
def test_after_a_failed_flush_no_write_is_taken_and_no_waiter_hangs(
    handler: MapHandler, start: Start, part: str
) -> None:
    handle = start()
    (handler.flushes_allowed if part == "flush" else handler.syncs_allowed).clear()
    with ThreadPoolExecutor(8) as threads:
        waiters = [
            threads.submit(handle.flush, handle.write(MapDelta({"a": number})))
            for number in range(4)
        ]
        subscriber = threads.submit(handle.subscribe().next) if part == "flush" else None
        until(lambda: handle.metrics().waiters == 4)
        if part == "flush":
            handler.flush_error = FULL
            handler.flushes_allowed.set()
        else:
            handler.sync_error = FULL
            handler.syncs_allowed.set()
        raised = [waiter.exception(LIMIT_S) for waiter in waiters]
        if subscriber:
            raised.append(subscriber.exception(LIMIT_S))
    assert len(set(map(id, raised))) == len(raised), "each has an error of its own"
    last = handle.metrics().epoch
    later: list[Callable[[], object]] = [
        lambda: handle.write(MapDelta({"b": 1})),
        lambda: handle.write_all([MapDelta({"b": 1})], None),
        lambda: handle.write_durable(MapDelta({"b": 1})),
        lambda: handle.flush(),
        lambda: handle.flush(Epoch(1)),
        lambda: handle.view(),
        lambda: handle.shutdown(),
        lambda: handle.shutdown(),
    ]
    for call in later:
        with pytest.raises(StorageError) as each:
            call()
        raised.append(each.value)
    for error in raised:
        assert isinstance(error, StorageError)
        assert "No space left on device" in error.what
        assert error.__cause__ is FULL
    assert handle.metrics().epoch == last
    assert handle.metrics().phase == "failed"


def test_shutdown_flushes_makes_durable_and_raises_what_failed(
    handler: MapHandler, start: Start
) -> None:
    handle = start()
    handle.write(MapDelta({"a": 1}))
    handle.shutdown(LIMIT_S)
    assert handler.flushed == [{"a": 1}]
    assert handler.synced == [1]
    another = start()
    another.write(MapDelta({"b": 1}))
    handler.sync_error = FULL
    for _ in range(2):
        with pytest.raises(StorageError, match="could not make a flush durable"):
            another.shutdown(LIMIT_S)


def test_shutdown_waits_for_a_flush_that_runs_and_for_what_came_after_it(
    handler: MapHandler, start: Start
) -> None:
    handle = start()
    handler.flushes_allowed.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(handle.write_durable, MapDelta({"a": 1}))
        assert handler.flush_began.wait(LIMIT_S)
        handle.write(MapDelta({"b": 1}))
        end = threads.submit(handle.shutdown)
        until(lambda: is_refused(handle.write))
        assert not end.done()
        handler.flushes_allowed.set()
        end.result(LIMIT_S)
        assert first.result(LIMIT_S) == 1
    assert handler.flushed == [{"a": 1}, {"b": 1}]
    assert handler.synced[-1] == 2


def is_refused(write: Callable[[MapDelta], Epoch]) -> bool:
    try:
        write(MapDelta())
    except UsageError:
        return True
    return False


def test_a_write_that_fails_uses_up_no_epoch_and_no_part_of_it_is_kept(
    handler: MapHandler, start: Start
) -> None:
    handle = start(pending_bytes_max=30)
    handle.write(MapDelta({"a": 1}))
    handler.syncs_allowed.clear()
    with pytest.raises(QueueFullError):
        handle.write_all([MapDelta({"b": 1}), MapDelta({"c": 1, "d": 1})])
    handler.syncs_allowed.set()
    assert handle.flush(timeout_s=LIMIT_S) == 1
    assert handle.snapshot() == {"a": 1}
    assert handle.write(MapDelta({"b": 1})) == 2


class HalfDelta(MapDelta):
    """Breaks the contract: its merge may fail, after a part of it."""

    def merge(self, other: MapDelta) -> None:
        super().merge(other)
        if "broken" in other.rows:
            raise ZeroDivisionError("division by zero")


def test_nothing_of_a_merge_that_failed_is_flushed(handler: MapHandler, start: Start) -> None:
    handle = start(new_delta=HalfDelta)
    epoch = handle.write_all([MapDelta({"a": 1}), MapDelta({"broken": 1, "b": 1})])
    with pytest.raises(HeadraceError, match="could not be merged: ZeroDivisionError"):
        handle.flush(epoch, LIMIT_S)
    assert handler.flushed == []
    assert handle.snapshot() == {}


def test_a_flush_works_while_the_queue_is_full(handler: MapHandler, start: Start) -> None:
    merging, go_on = threading.Event(), threading.Event()

    class SlowDelta(MapDelta):
        def merge(self, other: MapDelta) -> None:
            merging.set()
            assert go_on.wait(LIMIT_S)
            super().merge(other)

    handle = start(new_delta=SlowDelta, commands_max=2)
    handle.write(MapDelta({"a": 1}))
    assert merging.wait(LIMIT_S)
    handle.write_all([MapDelta({"b": 1}), MapDelta({"c": 1})])
    with pytest.raises(QueueFullError):
        handle.write(MapDelta({"d": 1}))
    with ThreadPoolExecutor(2) as threads:
        flushes = [threads.submit(handle.flush), threads.submit(handle.flush, Epoch(3))]
        go_on.set()
        assert [each.result(LIMIT_S) for each in flushes] == [3, 3]
    assert handle.snapshot() == {"a": 1, "b": 1, "c": 1}


def test_queued_pending_and_undurable_bytes_are_bounded_together(
    handler: MapHandler, start: Start
) -> None:
    handle = start(pending_bytes_max=100)
    handler.syncs_allowed.clear()
    for number in range(10):
        handle.write(MapDelta({str(number): number}))
        figures = handle.metrics()
        held = figures.queued_bytes + figures.pending_bytes + figures.frozen_bytes
        assert held == 10 * (number + 1)
    with pytest.raises(QueueFullError, match="finds no room"):
        handle.write(MapDelta({"a": 1}))
    assert handler.sync_began.wait(LIMIT_S)
    # All is flushed, and yet it counts until it is durable.
    until(lambda: handle.metrics().flushed_epoch == 10)
    with pytest.raises(QueueFullError):
        handle.write(MapDelta({"a": 1}))
    handler.syncs_allowed.set()
    assert handle.write(MapDelta({"a": 1}), LIMIT_S) == 11


def test_a_write_costs_the_same_however_much_is_pending(start: Start) -> None:
    """Nobody looks at rows to estimate a size: the pending delta is asked once for each step."""

    class AskedDelta(MapDelta):
        asked = 0

        @property
        def size_bytes(self) -> int:
            AskedDelta.asked += 1
            return super().size_bytes

    handle = start(new_delta=AskedDelta)
    handle.write(MapDelta({"a": 1}))
    handle.view()
    before = AskedDelta.asked
    handle.write_all([MapDelta({"a": 1})] * 1000)
    handle.view()
    assert 0 < AskedDelta.asked - before < 20


def test_what_the_timer_flushed_becomes_durable_though_nobody_asks(
    handler: MapHandler, start: Start
) -> None:
    handle = start(flush_interval_s=0.02)
    for number in range(3):
        epoch = handle.write(MapDelta({"a": number}))
        until(lambda epoch=epoch: handle.metrics().durable_epoch == epoch)  # type: ignore[misc]
    figures = handle.metrics()
    assert figures.timer_flushes == figures.flushes == 3
    assert handler.synced == [1, 2, 3]
    assert figures.undurable_s == 0


def test_a_write_during_the_end_of_a_flush_is_flushed_by_the_timer(start: Start) -> None:
    """It comes when the queue was taken, and before the coordinator knows that it is idle."""
    handle = start(flush_interval_s=0.02)
    epochs: list[Epoch] = []
    published = handle.actor.snapshots.after(Epoch(0))
    published.add_done_callback(lambda _: epochs.append(handle.write(MapDelta({"late": 1}))))
    handle.write_durable(MapDelta({"a": 1}), LIMIT_S)
    until(lambda: handle.metrics().durable_epoch == 2)
    assert epochs == [2]


def test_no_full_buffer_loses_a_write_and_all_readers_have_one_snapshot(
    handler: MapHandler, start: Start
) -> None:
    """Caches of other stores dropped what was not flushed, and showed different snapshots."""
    handle = start(pending_bytes_max=40)
    readers = [handle.subscribe() for _ in range(3)]
    for number in range(200):
        handle.write(MapDelta({str(number): number}), LIMIT_S)
        if number % 20 == 0:
            view = handle.view()
            assert len({**view.snapshot, **rows_of(view.deltas)}) == number + 1
        found = handle.snapshot()
        for reader in readers:
            assert len(reader.newest) >= len(found)
    handle.flush(timeout_s=LIMIT_S)
    assert all(reader.newest is handle.snapshot() for reader in readers)
    assert handle.snapshot() == {str(number): number for number in range(200)}
    assert handle.metrics().size_flushes > 10
