"""The memory backend: order, back-pressure, and other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headrace.errors import AccessError, HeadraceError, UsageError
from headrace.queues.contract import OffsetCommit, Output, QueueBackend
from headrace.queues.endpoint import QueueEndpoint, connect
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.queues.topics_service import ServedTopics

BYTES_MAX = 1000


def test_memory_backend_basic() -> None:
    """Messages come back first in, first out, whoever produced them."""

    async def scenario() -> None:
        async with MemoryBackend() as backend:
            await backend.create_topic("t")
            for n in range(100):
                assert await backend.produce("t", b"%d" % n) == n
            found = await backend.fetch("t", 0, 1000)
            assert [record.value for record in found] == [b"%d" % n for n in range(100)]
            assert await backend.fetch("t", 100) == []

    asyncio.run(scenario())


@pytest.fixture(params=["in process", "served"])
def opener(request: pytest.FixtureRequest) -> Iterator[Callable[[], QueueBackend]]:
    """Backends of topics that hold little."""
    if request.param == "in process":
        topics = MemoryTopics(BYTES_MAX)
        yield lambda: MemoryBackend(topics)
        topics.validate()
    else:
        with ServedTopics(bytes_max=BYTES_MAX) as served:
            yield lambda: connect(served.endpoint)
            served.backend.held.validate()


@pytest.mark.long
def test_producers_wait_for_room_and_nothing_is_dropped(
    opener: Callable[[], QueueBackend],
) -> None:
    """Many producers are far ahead of one consumer, which truncates behind itself."""
    each, producers = 200, 20

    async def produce(backend: QueueBackend, producer: int) -> None:
        for n in range(each):
            await backend.produce("t", b"%d %d" % (producer, n), b"x" * 20)

    async def consume(backend: QueueBackend) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < each * producers:
            records = await backend.fetch("t", len(found), 7, timeout_ms=10_000)
            assert records, "a message was lost"
            found += [record.value for record in records]
            await backend.truncate_before("t", len(found))
        return found

    async def scenario() -> None:
        async with opener() as backend, opener() as another:
            await backend.create_topic("t")
            producing = [
                asyncio.create_task(produce(backend if p % 2 else another, p))
                for p in range(producers)
            ]
            found = await consume(backend)
            await asyncio.gather(*producing)
            for producer in range(producers):
                mine = [value for value in found if value.startswith(b"%d " % producer)]
                assert mine == [b"%d %d" % (producer, n) for n in range(each)]

    asyncio.run(scenario())


def test_a_full_topic_holds_up_a_step_with_outputs_and_no_other(
    opener: Callable[[], QueueBackend],
) -> None:
    async def scenario() -> None:
        async with opener() as backend:
            await backend.create_topic("t")
            await backend.produce("t", b"x" * BYTES_MAX)
            full = asyncio.create_task(backend.produce("t", b"waits"))
            step = OffsetCommit("g", "t", 1, 0)
            held_up = asyncio.create_task(backend.produce_and_commit([Output("t", b"too")], step))
            await asyncio.wait([full, held_up], timeout=0.1)
            assert not full.done()
            assert not held_up.done()
            # What makes room must not wait for room.
            await backend.produce_and_commit([], OffsetCommit("g", "t", 0, None))
            assert len(await backend.fetch("t", 0)) == 1
            await backend.truncate_before("t", 1)
            await asyncio.wait_for(asyncio.gather(full, held_up), 10)
            assert {record.value for record in await backend.fetch("t", 1)} == {b"waits", b"too"}

    asyncio.run(scenario())


def test_a_producer_that_is_cancelled_while_it_waits_produces_nothing() -> None:
    async def scenario() -> None:
        async with MemoryBackend(bytes_max=10) as backend:
            await backend.create_topic("t")
            await backend.produce("t", b"x" * 10)
            waiting = asyncio.create_task(backend.produce("t", b"never"))
            await asyncio.wait([waiting], timeout=0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            await backend.truncate_before("t", 1)
            assert await backend.fetch("t", 1) == []

    asyncio.run(scenario())


def test_whoever_waits_learns_that_the_backend_has_stopped() -> None:
    async def scenario() -> None:
        backend = MemoryBackend(bytes_max=1)
        await backend.create_topic("t")
        await backend.produce("t", b"x")
        waiting = [
            asyncio.create_task(backend.produce("t", b"y")),
            asyncio.create_task(backend.fetch("t", 1, timeout_ms=60_000)),
        ]
        await asyncio.wait(waiting, timeout=0.05)
        await backend.stop()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, UsageError)

    asyncio.run(scenario())


def test_topics_are_served_only_to_who_has_the_token() -> None:
    async def scenario(endpoint: QueueEndpoint) -> HeadraceError:
        with pytest.raises(HeadraceError) as refused:
            async with connect(endpoint) as backend:
                await backend.topics()
        return refused.value

    with ServedTopics() as served:
        wrong = QueueEndpoint(served.endpoint.address, "wrong")
        assert isinstance(asyncio.run(scenario(wrong)), AccessError)


def test_topics_of_one_process_have_no_endpoint() -> None:
    with pytest.raises(UsageError, match="served to no other process"):
        MemoryBackend().endpoint()
    with pytest.raises(UsageError, match="the endpoint is empty"):
        connect(QueueEndpoint())
