"""What every queue backend must do, as tests: subclass it and provide an `opener`.

    class TestMine(QueueConformance):
        @pytest.fixture
        def opener(self): ...       # each call returns a backend, not started, of the same topics

Each test runs in an event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import (
    AheadOfHeadError,
    BehindRetentionError,
    ExistsError,
    FencedError,
    HeadraceError,
    NotFoundError,
    UsageError,
)
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, Record

Opener = Callable[[], QueueBackend]
T = TypeVar("T")

TOPIC = "units"
OUTPUT = "results"
GROUP = "captions"


def run(opener: Opener, scenario: Callable[[QueueBackend], Awaitable[T]]) -> T:
    """Run a scenario over a backend that is started before and stopped after it."""

    async def in_loop() -> T:
        async with opener() as backend:
            return await scenario(backend)

    return asyncio.run(in_loop())


async def fetch_all(
    backend: QueueBackend, topic: str, at_once: int, partition: int = 0
) -> list[Record]:
    """Fetch every message of a partition, `at_once` at a time."""
    offset = await backend.begin_offset(topic, partition=partition)
    found: list[Record] = []
    while records := await backend.fetch(topic, offset, at_once, partition=partition):
        found += records
        offset = records[-1].offset + 1
    return found


async def refusal(attempt: Awaitable[object]) -> type[HeadraceError]:
    """Return the kind of error that an attempt raises; fails if it succeeds."""
    found = await asyncio.gather(attempt, return_exceptions=True)
    (error,) = found
    assert isinstance(error, HeadraceError), f"it was not refused: {error!r}"
    assert error.do, f"{error!r} names no remedy"
    return type(error)


class QueueConformance:
    """The suite. `opener` is a pytest fixture that the subclass provides."""

    def test_queue_backend_interface(self, opener: Opener) -> None:
        """Every method can be called, and answers in its own type."""

        async def scenario(backend: QueueBackend) -> None:
            await backend.start()
            await backend.create_topic(TOPIC, 2)
            assert (await backend.topics())[TOPIC] == 2
            offset = await backend.produce(TOPIC, b"v", b"k", partition=1)
            assert isinstance(offset, int)
            (record,) = await backend.fetch(TOPIC, offset, partition=1)
            assert record[:3] == (offset, b"k", b"v")
            assert record.timestamp > 0
            batch = await backend.fetch_batch(TOPIC, offset, partition=1)
            assert batch.to_pylist() == [record._asdict()]
            assert await backend.begin_offset(TOPIC, partition=1) <= offset
            assert await backend.end_offset(TOPIC, partition=1) > offset
            assert await backend.get_committed_offset(GROUP, TOPIC) is None
            assert await backend.get_min_committed_offset(TOPIC) is None
            await backend.commit_offset(GROUP, TOPIC, offset + 1, partition=1)
            assert await backend.get_committed_offset(GROUP, TOPIC, partition=1) == offset + 1
            await backend.truncate_before(TOPIC, offset + 1, partition=1)
            await backend.delete_topic(TOPIC)
            assert TOPIC not in await backend.topics()
            await backend.stop()
            await backend.stop()

        run(opener, scenario)

    def test_produce_fetch_roundtrip(self, opener: Opener) -> None:
        """All messages come back, in order, whatever is fetched at once."""

        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            values = [bytes([n % 256]) * (n % 50) for n in range(1_000)]
            keys = [None if n % 3 else str(n).encode() for n in range(1_000)]
            offsets = await backend.produce_batch(TOPIC, values[:400], keys[:400])
            for n in range(400, 410):
                offsets.append(await backend.produce(TOPIC, values[n], keys[n]))
            offsets += await backend.produce_batch(TOPIC, values[410:], keys[410:])
            assert offsets == sorted(set(offsets))
            for at_once in (1, 7, 5_000):
                found = await fetch_all(backend, TOPIC, at_once)
                assert [record[:3] for record in found] == list(
                    zip(offsets, keys, values, strict=True)
                )

        run(opener, scenario)

    def test_messages_that_are_produced_at_once_are_all_there(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            produced = [backend.produce(TOPIC, str(n).encode()) for n in range(300)]
            offsets = await asyncio.gather(*produced)
            assert len(set(offsets)) == 300
            found = {record.offset: record.value for record in await fetch_all(backend, TOPIC, 64)}
            assert found == {offset: str(n).encode() for n, offset in enumerate(offsets)}

        run(opener, scenario)

    def test_partitions_share_nothing(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC, 3)
            for partition in range(3):
                await backend.produce_batch(TOPIC, [b"%d" % partition] * 5, partition=partition)
            (first, *_) = await fetch_all(backend, TOPIC, 10, partition=2)
            await backend.commit_offset(GROUP, TOPIC, first.offset + 1, partition=2)
            for partition in range(3):
                found = await fetch_all(backend, TOPIC, 2, partition=partition)
                assert [record.value for record in found] == [b"%d" % partition] * 5
            assert await backend.get_committed_offset(GROUP, TOPIC, partition=1) is None

        run(opener, scenario)

    def test_a_fetch_waits_for_a_message(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            end = await backend.end_offset(TOPIC)
            assert await backend.fetch(TOPIC, end, timeout_ms=20) == []
            waiting = asyncio.create_task(backend.fetch(TOPIC, end, timeout_ms=30_000))
            await asyncio.wait([waiting], timeout=0.05)
            assert not waiting.done()
            await backend.produce(TOPIC, b"late")
            assert [record.value for record in await waiting] == [b"late"]

        run(opener, scenario)

    def test_a_message_of_another_backend_is_seen_at_once(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            async with opener() as another:
                await backend.create_topic(TOPIC)
                offset = 0
                for n in range(20):
                    producer = another if n % 3 else backend
                    await producer.produce(TOPIC, b"%d" % n)
                    (found,) = await backend.fetch(TOPIC, offset)
                    assert found.value == b"%d" % n
                    offset = found.offset + 1
                    assert await backend.fetch(TOPIC, offset) == []

        run(opener, scenario)

    def test_outputs_and_offset_commit_together(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            await backend.create_topic(OUTPUT, 2)
            inputs = await backend.produce_batch(TOPIC, [b"a", b"b"])
            outputs = [
                Output(OUTPUT, b"A", b"k", 1),
                Output(OUTPUT, b"B"),
                Output(OUTPUT, b"C", None, 1),
            ]
            step = OffsetCommit(GROUP, TOPIC, inputs[0] + 1, None)
            offsets = await backend.produce_and_commit(outputs, step)
            assert [r[:3] for r in await fetch_all(backend, OUTPUT, 9, 1)] == [
                (offsets[0], b"k", b"A"),
                (offsets[2], None, b"C"),
            ]
            assert [r.value for r in await fetch_all(backend, OUTPUT, 9)] == [b"B"]
            assert await backend.get_committed_offset(GROUP, TOPIC) == inputs[0] + 1
            # A step without outputs moves the offset too.
            step = OffsetCommit(GROUP, TOPIC, inputs[1] + 1, inputs[0] + 1)
            assert await backend.produce_and_commit([], step) == []
            assert await backend.get_committed_offset(GROUP, TOPIC) == inputs[1] + 1

        run(opener, scenario)

    def test_a_zombie_is_refused_and_leaves_nothing(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            async with opener() as zombie:
                await backend.create_topic(TOPIC)
                await backend.create_topic(OUTPUT)
                first, second = await backend.produce_batch(TOPIC, [b"a", b"b"])
                mine = OffsetCommit(GROUP, TOPIC, first + 1, None)
                await zombie.produce_and_commit([Output(OUTPUT, b"A")], mine)
                # Another worker takes over and goes on.
                step = OffsetCommit(GROUP, TOPIC, second + 1, first + 1)
                await backend.produce_and_commit([Output(OUTPUT, b"B")], step)
                for late in (step, mine, OffsetCommit(GROUP, TOPIC, second + 1, second + 1)):
                    attempt = zombie.produce_and_commit([Output(OUTPUT, b"X")], late)
                    if late.expected == second + 1:
                        await attempt  # It expects what is so: it has caught up.
                    else:
                        assert await refusal(attempt) is FencedError
            assert [r.value for r in await fetch_all(backend, OUTPUT, 9)] == [b"A", b"B", b"X"]
            assert await backend.get_committed_offset(GROUP, TOPIC) == second + 1

        run(opener, scenario)

    def test_a_topic_that_is_created_anew_has_nothing_of_the_old_one(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            async with opener() as worker:
                await backend.create_topic(TOPIC)
                await backend.create_topic(OUTPUT)
                first, second = await worker.produce_batch(TOPIC, [b"a", b"b"])
                step = OffsetCommit(GROUP, TOPIC, first + 1, None)
                await worker.produce_and_commit([Output(OUTPUT, b"A")], step)
                await backend.delete_topic(TOPIC)
                await backend.create_topic(TOPIC, 2)
                assert await backend.get_committed_offset(GROUP, TOPIC) is None
                assert await fetch_all(backend, TOPIC, 9) == []
                await backend.produce_batch(TOPIC, [b"x", b"y"])
                # The worker goes on with what it fetched from the old topic.
                late = OffsetCommit(GROUP, TOPIC, second + 1, first + 1)
                attempt = worker.produce_and_commit([Output(OUTPUT, b"B")], late)
                assert await refusal(attempt) in (FencedError, UsageError)
                assert await worker.get_committed_offset(GROUP, TOPIC) is None
            assert [r.value for r in await fetch_all(backend, OUTPUT, 9)] == [b"A"]

        run(opener, scenario)

    def test_a_refused_step_moves_nothing(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            await backend.create_topic(OUTPUT)
            first = await backend.produce(TOPIC, b"a")
            step = OffsetCommit(GROUP, TOPIC, first + 1, first)
            attempt = backend.produce_and_commit([Output(OUTPUT, b"A")], step)
            assert await refusal(attempt) is FencedError
            assert await backend.get_committed_offset(GROUP, TOPIC) is None
            assert await fetch_all(backend, OUTPUT, 9) == []

        run(opener, scenario)

    def test_truncation_keeps_what_no_group_has_processed(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            offsets = [await backend.produce(TOPIC, b"%d" % n) for n in range(10)]
            await backend.commit_offset("fast", TOPIC, offsets[9] + 1)
            await backend.commit_offset("slow", TOPIC, offsets[4])
            least = await backend.get_min_committed_offset(TOPIC)
            assert least == offsets[4]
            await backend.truncate_before(TOPIC, least)
            found = await backend.fetch(TOPIC, offsets[4])
            assert [record.value for record in found] == [b"%d" % n for n in range(4, 10)]
            if await backend.begin_offset(TOPIC) > offsets[0]:
                assert await refusal(backend.fetch(TOPIC, offsets[0])) is BehindRetentionError
            again = await backend.produce(TOPIC, b"10")
            assert again > offsets[9]

        run(opener, scenario)

    def test_what_is_wrong_is_refused_by_name(self, opener: Opener) -> None:
        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC, 2)
            await backend.create_topic(TOPIC, 2)
            end = await backend.end_offset(TOPIC)
            first = OffsetCommit(GROUP, TOPIC, end, None)
            cases: list[tuple[Awaitable[object], type[HeadraceError]]] = [
                (backend.create_topic(TOPIC, 3), ExistsError),
                (backend.create_topic("none", 0), UsageError),
                (backend.produce("missing", b""), NotFoundError),
                (backend.produce(TOPIC, b"", partition=2), NotFoundError),
                (backend.produce_batch(TOPIC, [b""], []), UsageError),
                (backend.fetch("missing", 0), NotFoundError),
                (backend.fetch(TOPIC, 0, partition=-1), NotFoundError),
                (backend.fetch(TOPIC, end + (1 << 40)), AheadOfHeadError),
                (backend.commit_offset(GROUP, TOPIC, end + (1 << 40)), UsageError),
                (backend.commit_offset(GROUP, TOPIC, -1), UsageError),
                (backend.get_committed_offset(GROUP, "missing"), NotFoundError),
                (backend.delete_topic("missing"), NotFoundError),
                (backend.produce_and_commit([Output("missing", b"")], first), NotFoundError),
            ]
            for attempt, kind in cases:
                assert await refusal(attempt) is kind
            assert await fetch_all(backend, TOPIC, 10) == []

        run(opener, scenario)

    def test_offset_recovery(self, opener: Opener) -> None:
        """A worker that begins at the committed offset skips nothing and repeats nothing."""

        async def scenario(backend: QueueBackend) -> None:
            await backend.create_topic(TOPIC)
            await backend.create_topic(OUTPUT)
            await backend.produce_batch(TOPIC, [b"%d" % n for n in range(100)])
            expected = None
            for _ in range(9):
                # Each worker takes a few and is then replaced by another.
                async with opener() as worker:
                    begin = await worker.begin_offset(TOPIC)
                    offset = begin if expected is None else expected
                    records = await worker.fetch(TOPIC, offset, 13)
                    if not records:
                        break
                    after = records[-1].offset + 1
                    step = OffsetCommit(GROUP, TOPIC, after, expected)
                    outputs = [Output(OUTPUT, record.value) for record in records]
                    await worker.produce_and_commit(outputs, step)
                    expected = await backend.get_committed_offset(GROUP, TOPIC)
                    assert expected == after
            found = [record.value for record in await fetch_all(backend, OUTPUT, 50)]
            assert found == [b"%d" % n for n in range(100)]

        run(opener, scenario)
