"""The coordinator for programs on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import CommitOutcome, InDoubtError, QueueFullError, StorageError, UsageError
from headrace.ingest.async_handle import AsyncIngestHandle
from headrace.ingest.contract import Epoch
from tests.ingest.conftest import LIMIT_S, Start, until
from tests.ingest.memory_store import MapDelta, MapHandler, MapSnapshot, rows_of

AsyncHandle = AsyncIngestHandle[MapDelta, MapSnapshot]


def run(start: Start, body: Callable[[AsyncHandle], Awaitable[None]], **settings: float) -> None:
    async def program() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body(AsyncIngestHandle(start(**settings)))

    asyncio.run(program())


def test_writes_become_durable_and_visible(handler: MapHandler, start: Start) -> None:
    async def body(handle: AsyncHandle) -> None:
        async with handle:
            assert await handle.write(MapDelta({"a": 1})) == 1
            assert await handle.write_all([MapDelta({"b": 1}), MapDelta({"c": 1})]) == 3
            view = await handle.view()
            assert rows_of(view.deltas) == {"a": 1, "b": 1, "c": 1}
            assert await handle.flush() == 3
            assert handle.snapshot() == {"a": 1, "b": 1, "c": 1}
            assert await handle.write_durable(MapDelta({"d": 1})) == 4
            assert (await handle.metrics()).durable_epoch == 4
            await handle.write(MapDelta({"e": 1}))
        with pytest.raises(UsageError, match="the store is closed"):
            await handle.write(MapDelta({"f": 1}))

    run(start, body)
    assert handler.flushed[-1] == {"e": 1}
    assert handler.synced[-1] == len(handler.flushed)


def test_a_hundred_tasks_share_flushes(handler: MapHandler, start: Start) -> None:
    async def body(handle: AsyncHandle) -> None:
        deltas = [MapDelta({str(number): number}) for number in range(100)]
        epochs = await asyncio.gather(*(handle.write_durable(delta) for delta in deltas))
        assert sorted(epochs) == list(range(1, 101))

    run(start, body)
    assert len(handler.flushed) < 100


def test_the_loop_runs_on_while_a_flush_takes_long(handler: MapHandler, start: Start) -> None:
    handler.flushes_allowed.clear()

    async def body(handle: AsyncHandle) -> None:
        flush = asyncio.create_task(handle.write_durable(MapDelta({"a": 1})))
        await asyncio.to_thread(handler.flush_began.wait, LIMIT_S)
        # All of this happens while the flush is held.
        assert await handle.write(MapDelta({"b": 1})) == 2
        assert rows_of((await handle.view()).deltas) == {"a": 1, "b": 1}
        assert handle.snapshot() == {}
        assert not flush.done()
        handler.flushes_allowed.set()
        assert await flush == 1

    run(start, body)


def test_a_write_waits_for_room(handler: MapHandler, start: Start) -> None:
    handler.syncs_allowed.clear()

    async def body(handle: AsyncHandle) -> None:
        await handle.write_all([MapDelta({"a": 1}), MapDelta({"b": 1})])
        delta = MapDelta({"c": 1})
        with pytest.raises(QueueFullError):
            await handle.write(delta)
        with pytest.raises(QueueFullError):
            await handle.write(delta, 0.01)
        first = asyncio.create_task(handle.write(delta, None))
        cancelled = asyncio.create_task(handle.write(MapDelta({"x": 1}), None))
        await asyncio.to_thread(handler.sync_began.wait, LIMIT_S)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not first.done()
        handler.syncs_allowed.set()
        assert await first == 3
        await handle.flush()
        assert handle.snapshot() == {"a": 1, "b": 1, "c": 1}

    run(start, body, pending_bytes_max=20)


def test_a_flush_that_takes_too_long_is_in_doubt_and_may_be_asked_again(
    handler: MapHandler, start: Start
) -> None:
    handler.syncs_allowed.clear()

    async def body(handle: AsyncHandle) -> None:
        with pytest.raises(InDoubtError, match="epoch 1 is not durable yet") as raised:
            await handle.write_durable(MapDelta({"a": 1}), 0.01)
        waiting = asyncio.create_task(handle.flush())
        await asyncio.to_thread(handler.sync_began.wait, LIMIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        handler.syncs_allowed.set()
        outcome = await asyncio.to_thread(raised.value.outcome, LIMIT_S)
        assert outcome is CommitOutcome.COMMITTED
        assert (await handle.metrics()).waiters == 0

    run(start, body)


def test_a_failure_reaches_every_task(handler: MapHandler, start: Start) -> None:
    handler.flush_error = OSError(28, "No space left on device")

    async def body(handle: AsyncHandle) -> None:
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(handle.write_durable(MapDelta({"a": number})))
            for number in range(5)
        ]
        tasks.append(asyncio.create_task(handle.subscribe().next()))
        for task in tasks:
            with pytest.raises(StorageError, match="No space left on device"):
                await task
        with pytest.raises(StorageError):
            await handle.shutdown()

    run(start, body)


def test_subscribers_get_the_newest_snapshot(handler: MapHandler, start: Start) -> None:
    async def body(handle: AsyncHandle) -> None:
        subscription = handle.subscribe()
        assert subscription.newest == {}
        with pytest.raises(TimeoutError):
            await subscription.next(0.01)
        waiting = asyncio.create_task(subscription.next())
        await handle.write_durable(MapDelta({"a": 1}))
        assert await waiting == {"a": 1}
        for number in range(3):
            await handle.write_durable(MapDelta({"a": number}))
        assert await subscription.next() == {"a": 2}
        assert subscription.epoch == 4
        assert not handle._actor.snapshots._waiting, "those who gave up are kept nowhere"
        behind = handle.subscribe()
        behind.epoch = Epoch(1)
        assert await behind.next(0) == {"a": 2}, "a snapshot that is there takes no time"
        waiting = asyncio.create_task(subscription.next())
        await handle.shutdown()
        with pytest.raises(UsageError, match="the store is closed"):
            await waiting
        with pytest.raises(UsageError, match="the store is closed"):
            await subscription.next()

    run(start, body)


def test_threads_and_tasks_may_share_one_coordinator(handler: MapHandler, start: Start) -> None:
    handle = start()

    async def program() -> None:
        tasks = AsyncIngestHandle(handle)
        await tasks.write(MapDelta({"a": 1}))
        handle.write(MapDelta({"b": 1}))
        await tasks.flush()

    asyncio.run(program())
    until(lambda: handle.metrics().durable_epoch == 2)
    assert handle.snapshot() == {"a": 1, "b": 1}
