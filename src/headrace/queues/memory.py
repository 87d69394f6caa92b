"""The memory backend: topics that live as long as the process that holds them.

`MemoryTopics` holds them for any number of threads. `MemoryBackend` is the asynchronous contract
over it, in the same process; `remote` is the same contract in another one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.errors import UsageError
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, Record
from headrace.queues.state import PartitionState, TopicsState, message_bytes
from headrace.settings import MIB

BYTES_MAX = 256 * MIB

T = TypeVar("T")


class MemoryTopics:
    """Topics for any number of threads. Producers wait while `bytes_max` are kept."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        if bytes_max < 1:
            raise UsageError(f"bytes_max must be at least 1, got {bytes_max}", do="give it more")
        self._state = TopicsState()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False

    def change(self, what: Callable[[TopicsState, int], T]) -> T:
        """Run `what(state, now)`, and wake up whoever waits for a change."""
        with self._changed:
            self._check_open()
            result = what(self._state, time.time_ns() // 1_000_000)
            self._changed.notify_all()
            return result

    def look(self, what: Callable[[TopicsState], T]) -> T:
        with self._changed:
            self._check_open()
            return what(self._state)

    @property
    def _is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int,
        *,
        wait: bool = True,
    ) -> range | None:
        """Append messages. If the topics are full, wait for room, or return None."""
        with self._changed:
            if not self._has_room(wait=wait):
                return None
            offsets = self.change(
                lambda state, now: state.produce(topic, values, keys, partition, now)
            )
            self._bytes += message_bytes(values, keys)
            return offsets

    def fetch(
        self, topic: str, offset: int, most: int, partition: int, timeout_s: float
    ) -> list[Record]:
        """Return messages; waits up to `timeout_s` for the first."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = self.look(lambda state: state.fetch(topic, offset, most, partition))
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                self._changed.wait(left)

    def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit, *, wait: bool = True
    ) -> list[int] | None:
        """Do as the contract says. If there is no room for outputs, wait, or return None."""
        with self._changed:
            if outputs and not self._has_room(wait=wait):
                return None
            offsets = self.change(lambda state, now: state.produce_and_commit(outputs, commit, now))
            self._bytes += message_bytes(
                [output.value for output in outputs], [output.key for output in outputs]
            )
            return offsets

    def truncate_before(self, topic: str, offset: int, partition: int) -> None:
        def truncate(state: TopicsState, _: int) -> int:
            kept: PartitionState = state.partition(topic, partition)
            before = kept.kept_bytes
            kept.truncate(offset)
            return before - kept.kept_bytes

        with self._changed:
            self._bytes -= self.change(truncate)

    def delete_topic(self, topic: str) -> None:
        with self._changed:
            self.change(lambda state, _: state.delete_topic(topic))
            self._bytes = self._state.kept_bytes

    def close(self) -> None:
        """Wake up whoever waits, with an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def validate(self) -> None:
        with self._changed:
            self._state.validate()
            assert self._bytes == self._state.kept_bytes

    def _has_room(self, *, wait: bool) -> bool:
        while self._is_full and wait:
            self._check_open()
            self._changed.wait()
        return not self._is_full

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the queue backend is stopped", do="start another")


class MemoryBackend(QueueBackend):
    """The contract over `MemoryTopics` of this process."""

    def __init__(self, topics: MemoryTopics | None = None, *, bytes_max: int = BYTES_MAX) -> None:
        self.held = topics or MemoryTopics(bytes_max)
        self._owns = topics is None

    async def start(self) -> None:
        """Nothing needs to be started."""

    async def stop(self) -> None:
        if self._owns:
            self.held.close()

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
        offsets = self.held.produce(topic, values, keys, partition, wait=False)
        if offsets is None:
            offsets = await asyncio.to_thread(self.held.produce, topic, values, keys, partition)
            assert offsets is not None
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
        found = self.held.fetch(topic, offset, max_records, partition, 0)
        if found or not timeout_ms:
            return found
        timeout_s = timeout_ms / 1000
        return await asyncio.to_thread(
            self.held.fetch, topic, offset, max_records, partition, timeout_s
        )

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
        offsets = self.held.produce_and_commit(outputs, commit, wait=False)
        if offsets is None:
            offsets = await asyncio.to_thread(self.held.produce_and_commit, outputs, commit)
            assert offsets is not None
        return offsets

    async def truncate_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        self.held.truncate_before(topic, offset, partition)
