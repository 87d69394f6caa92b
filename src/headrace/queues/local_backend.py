"""The local backend: durable topics on the journals of a workspace.

What `produce` and `produce_and_commit` return from is synced to the disk. Any number of processes
may use the topics of one workspace, each with a backend of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, QueueEndpoint, Record
from headrace.queues.local_growth import Growth
from headrace.queues.local_layout import Messages, PartitionId, check_step, group_outputs
from headrace.queues.local_steps import LocalSteps
from headrace.queues.local_topics import LocalTopics
from headrace.queues.messages import to_records
from headrace.queues.state import check_keys

T = TypeVar("T")

_THREADS = 8


class _Waiting(NamedTuple):
    output: Output
    step_bytes: int
    offset: asyncio.Future[int]

    def fulfil(self, offset: int) -> None:
        # A task that was cancelled no longer waits.
        if not self.offset.done():
            self.offset.set_result(offset)

    def refuse(self, error: BaseException) -> None:
        if not self.offset.done():
            self.offset.set_exception(error)


class _Running(NamedTuple):
    """What a backend has while it is started."""

    workspace: Workspace
    topics: LocalTopics
    steps: LocalSteps
    growth: Growth
    threads: ThreadPoolExecutor


class LocalBackend(QueueBackend):
    """The contract over the topics of a workspace."""

    def __init__(self, workspace: Workspace | Callable[[], Workspace]) -> None:
        """Use a workspace, which stays the caller's to close; or open one at every start."""
        self._workspace = workspace
        self._running: _Running | None = None
        self._waiting: list[_Waiting] = []
        self._flush: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._running is None:
            self._running = await asyncio.to_thread(self._open)

    def _open(self) -> _Running:
        given = self._workspace
        workspace = given if isinstance(given, Workspace) else given()
        topics = LocalTopics(workspace)
        steps = LocalSteps(workspace, topics)
        threads = ThreadPoolExecutor(_THREADS, "headrace-queues")
        return _Running(workspace, topics, steps, Growth(workspace, topics), threads)

    async def stop(self) -> None:
        if (running := self._running) is None:
            return
        if self._flush:
            await self._flush
        self._running = None
        await asyncio.to_thread(self._close, running)

    def _close(self, running: _Running) -> None:
        running.growth.close()
        running.steps.close()
        running.threads.shutdown()
        if running.workspace is not self._workspace:
            running.workspace.close()

    @property
    def _started(self) -> _Running:
        if self._running is None:
            raise UsageError("the queue backend is not started", do="start it first")
        return self._running

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._started.threads, call, *arguments)

    def endpoint(self) -> QueueEndpoint:
        return QueueEndpoint(workspace=self._started.workspace.reach())

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        await self._run(self._started.topics.create, topic, partitions)

    async def delete_topic(self, topic: str) -> None:
        await self._run(self._started.topics.delete, topic)

    async def topics(self) -> dict[str, int]:
        return await self._run(self._started.topics.topics)

    async def produce(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int = 0
    ) -> int:
        # It may be the only message of the step for its partition.
        messages = Messages(PartitionId(topic, partition), [value], [key])
        check_step([messages], self._started.steps.bytes_max)
        offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        output = Output(topic, value, key, partition)
        self._waiting.append(_Waiting(output, messages.step_bytes, offset))
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._flush_waiting())
        return await offset

    async def _flush_waiting(self) -> None:
        """Append what waits, together, until nothing waits any more."""
        while self._waiting:
            taken = self._take_step()
            try:
                await self._append(taken)
            except UsageError as error:
                # One wrong message must not fail those that came with it.
                for each in taken:
                    await self._append_alone(each, error if len(taken) == 1 else None)
            except BaseException as error:  # noqa: BLE001  whoever waits gets it
                for each in taken:
                    each.refuse(error)

    async def _append(self, taken: list[_Waiting]) -> None:
        step, numbers = group_outputs([each.output for each in taken])
        offsets = await self._run(self._started.steps.append, step)
        for mine, theirs in zip(numbers, offsets, strict=True):
            for number, offset in zip(mine, theirs, strict=True):
                taken[number].fulfil(offset)

    async def _append_alone(self, each: _Waiting, refusal: UsageError | None) -> None:
        try:
            if refusal:
                raise refusal
            await self._append([each])
        except BaseException as error:  # noqa: BLE001  whoever waits gets it
            each.refuse(error)

    def _take_step(self) -> list[_Waiting]:
        """Take as many messages from the front as one step may have."""
        left = self._started.steps.bytes_max
        count = 0
        for each in self._waiting:
            left -= each.step_bytes
            if count and left < 0:
                break
            count += 1
        taken = self._waiting[:count]
        del self._waiting[:count]
        return taken

    async def produce_batch(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int = 0,
    ) -> list[int]:
        check_keys(topic, values, keys)
        return await self._run(
            self._started.steps.append_batch,
            Messages(PartitionId(topic, partition), values, keys or None),
        )

    async def fetch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> list[Record]:
        batch = await self.fetch_batch(
            topic, offset, max_records, partition=partition, timeout_ms=timeout_ms
        )
        return to_records(batch)

    async def fetch_batch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> pa.RecordBatch:
        fetch = partial(self._started.topics.fetch, topic, offset, max_records, partition)
        found = await self._run(fetch)
        if found.num_rows or timeout_ms <= 0:
            return found
        deadline = time.monotonic() + timeout_ms / 1000
        waiters = await self._run(self._started.growth.waiters, PartitionId(topic, partition))
        while True:
            with waiters.ticket() as ticket:
                found = await self._run(fetch)
                left = deadline - time.monotonic()
                if found.num_rows or left <= 0:
                    return found
                await ticket.wait(left)

    async def begin_offset(self, topic: str, *, partition: int = 0) -> int:
        begin, _ = await self._run(self._bounds, topic, partition)
        return begin

    async def end_offset(self, topic: str, *, partition: int = 0) -> int:
        _, end = await self._run(self._bounds, topic, partition)
        return end

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        topics = self._started.topics
        return topics.bounds(topics.partition(topic, partition))

    async def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0
    ) -> None:
        await self._run(self._started.steps.commit_offset, group, topic, offset, partition)

    async def get_committed_offset(
        self, group: str, topic: str, *, partition: int = 0
    ) -> int | None:
        return await self._run(self._started.steps.committed, group, topic, partition)

    async def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> int | None:
        return await self._run(self._started.steps.least_committed, topic, partition)

    async def committed_by_all(self, topic: str) -> dict[tuple[int, str], int]:
        """Return the committed offset of every group, by partition and group."""
        return await self._run(self._started.steps.committed_by_all, topic)

    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        return await self._run(self._started.steps.produce_and_commit, outputs, commit)

    async def truncate_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        await self._run(self._started.topics.truncate_before, topic, offset, partition)
