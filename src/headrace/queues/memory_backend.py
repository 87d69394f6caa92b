"""The memory backend: topics that live as long as the process that holds them.

`MemoryTopics` holds them for any number of threads. `MemoryBackend` is the asynchronous contract
over it, in the same process; `remote` is the same contract in another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from headrace.errors import UsageError
from headrace.queues.change_ticket import Waiters
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, QueueEndpoint, Record
from headrace.queues.messages import to_record_batch
from headrace.queues.state import Columns, TopicsState, message_bytes
from headrace.settings import MIB

BYTES_MAX = 256 * MIB

T = TypeVar("T")


class MemoryTopics:
    """Topics for any number of threads. Producers wait while `bytes_max` are kept.

    Nothing is ever dropped: only `truncate_before` and `delete_topic` make room.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        if bytes_max < 1:
            raise UsageError(f"bytes_max must be at least 1, got {bytes_max}", do="give it more")
        self._state = TopicsState()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._closed = False
        self.waiters = Waiters()
        """Whoever waits for a message, or for room."""

    def change(self, what: Callable[[TopicsState, int], T]) -> T:
        """Run `what(state, now)`, and wake up whoever waits for a change."""
        with self._lock:
            self._check_open()
            result = what(self._state, time.time_ns() // 1_000_000)
        self.waiters.wake()
        return result

    def look(self, what: Callable[[TopicsState], T]) -> T:
        with self._lock:
            self._check_open()
            return what(self._state)

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int,
    ) -> range | None:
        """Append messages; returns their offsets, or None if the topics are full."""

        def produce(state: TopicsState, now: int) -> range:
            offsets = state.produce(topic, values, keys, partition, now)
            self._bytes += message_bytes(values, keys)
            return offsets

        return None if self._is_full() else self.change(produce)

    def fetch(self, topic: str, offset: int, most: int, partition: int) -> Columns:
        return self.look(lambda state: state.fetch(topic, offset, most, partition))

    def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int] | None:
        """Do as the contract says; returns None if there is no room for the outputs."""

        def produce(state: TopicsState, now: int) -> list[int]:
            offsets = state.produce_and_commit(outputs, commit, now)
            self._bytes += message_bytes(
                [output.value for output in outputs], [output.key for output in outputs]
            )
            return offsets

        return None if outputs and self._is_full() else self.change(produce)

    def _is_full(self) -> bool:
        """Return True if producers must wait. One that looks just before may still exceed it."""
        self._check_open()
        return self._bytes >= self._bytes_max

    def truncate_before(self, topic: str, offset: int, partition: int) -> None:
        def truncate(state: TopicsState, _: int) -> None:
            kept = state.partition(topic, partition)
            before = kept.kept_bytes
            kept.truncate(offset)
            self._bytes -= before - kept.kept_bytes

        self.change(truncate)

    def delete_topic(self, topic: str) -> None:
        def delete(state: TopicsState, _: int) -> None:
            state.delete_topic(topic)
            self._bytes = state.kept_bytes

        self.change(delete)

    def close(self) -> None:
        """Wake up whoever waits, with an error."""
        with self._lock:
            self._closed = True
        self.waiters.wake()

    def validate(self) -> None:
        with self._lock:
            self._state.validate()
            assert self._bytes == self._state.kept_bytes

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the queue backend is stopped", do="start another")


class MemoryBackend(QueueBackend):
    """The contract over `MemoryTopics` of this process."""

    def __init__(
        self,
        topics: MemoryTopics | None = None,
        *,
        bytes_max: int = BYTES_MAX,
        served_at: QueueEndpoint | None = None,
    ) -> None:
        """Hold topics of its own, or use those of somebody else, who closes them.

        `served_at` is where a server lets other processes use these topics.
        """
        self.held = topics or MemoryTopics(bytes_max)
        self._owns = topics is None
        self._served_at = served_at

    async def start(self) -> None:
        """Nothing needs to be started."""

    async def stop(self) -> None:
        if self._owns:
            self.held.close()

    def endpoint(self) -> QueueEndpoint:
        if self._served_at is None:
            raise UsageError(
                "these topics are served to no other process", do="serve them with ServedTopics"
            )
        return self._served_at

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        self.held.change(lambda state, _: state.create_topic(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        self.held.delete_topic(topic)

    async def topics(self) -> dict[str, int]:
        return self.held.look(lambda state: state.topics)

    async def produce(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int = 0
    ) -> int:
        offsets = await self.produce_batch(topic, [value], [key], partition=partition)
        return offsets[0]

    async def produce_batch(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int = 0,
    ) -> list[int]:
        offsets = await self._once_there_is_room(
            lambda: self.held.produce(topic, values, keys, partition)
        )
        return list(offsets)

    async def fetch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> list[Record]:
        return (await self._fetch(topic, offset, max_records, partition, timeout_ms)).records()

    async def fetch_batch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> pa.RecordBatch:
        return to_record_batch(await self._fetch(topic, offset, max_records, partition, timeout_ms))

    async def _fetch(
        self, topic: str, offset: int, most: int, partition: int, timeout_ms: int
    ) -> Columns:
        found = self.held.fetch(topic, offset, most, partition)
        if found.offsets or timeout_ms <= 0:
            return found
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            with self.held.waiters.ticket() as ticket:
                found = self.held.fetch(topic, offset, most, partition)
                left = deadline - time.monotonic()
                if found.offsets or left <= 0:
                    return found
                await ticket.wait(left)

    async def _once_there_is_room(self, produce: Callable[[], T | None]) -> T:
        while (offsets := produce()) is None:
            with self.held.waiters.ticket() as ticket:
                if (offsets := produce()) is not None:
                    break
                await ticket.wait()
        return offsets

    async def begin_offset(self, topic: str, *, partition: int = 0) -> int:
        return self.held.look(lambda state: state.partition(topic, partition).begin)

    async def end_offset(self, topic: str, *, partition: int = 0) -> int:
        return self.held.look(lambda state: state.partition(topic, partition).end)

    async def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0
    ) -> None:
        self.held.change(lambda state, _: state.commit(group, topic, offset, partition))

    async def get_committed_offset(
        self, group: str, topic: str, *, partition: int = 0
    ) -> int | None:
        return self.held.look(lambda state: state.committed(group, topic, partition))

    async def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> int | None:
        return self.held.look(lambda state: state.least_committed(topic, partition))

    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        return await self._once_there_is_room(lambda: self.held.produce_and_commit(outputs, commit))

    async def truncate_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        self.held.truncate_before(topic, offset, partition)
