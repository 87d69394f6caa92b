"""The local backend: durable topics on the journals of a workspace.

What `produce` and `produce_and_commit` return from is synced to the disk. Any number of processes
may use the topics of one workspace, each with a backend of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, UsageError
from headrace.journal.contract import Watch
from headrace.journal.workspace import Workspace
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, Record
from headrace.queues.local_topics import STEP_BYTES_MAX, LocalTopics, output_bytes
from headrace.queues.messages import to_records
from headrace.queues.state import check_keys

_THREADS = 8
_WATCH_S = 60.0


class _Waiting(NamedTuple):
    output: Output
    offset: asyncio.Future[int]


class LocalBackend(QueueBackend):
    """The contract over the topics of a workspace, which stays the caller's to close."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._topics = LocalTopics(workspace)
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: list[_Waiting] = []
        self._flush: asyncio.Task[None] | None = None
        self._growth: _Growth | None = None

    async def start(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "headrace-queues")
            self._growth = _Growth(self._workspace, self._topics)

    async def stop(self) -> None:
        threads, self._threads = self._threads, None
        growth, self._growth = self._growth, None
        if threads is None or growth is None:
            return
        if self._flush:
            await self._flush
        growth.close()
        await asyncio.to_thread(self._topics.close)
        threads.shutdown()

    async def _run(self, call: partial[Any]) -> Any:
        if self._threads is None:
            raise UsageError("the queue backend is not started", do="start it first")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        await self._run(partial(self._topics.create, topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        await self._run(partial(self._topics.delete, topic))

    async def topics(self) -> dict[str, int]:
        return dict(await self._run(partial(self._topics.topics)))

    async def produce(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int = 0
    ) -> int:
        offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(Output(topic, value, key, partition), offset))
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._flush_waiting())
        return await offset

    async def _flush_waiting(self) -> None:
        """Append what waits, together, until nothing waits any more."""
        while self._waiting:
            taken = _take_step(self._waiting)
            try:
                offsets = await self._run(
                    partial(self._topics.append, [each.output for each in taken])
                )
            except HeadraceError as error:
                await self._flush_one_by_one(taken, error)
                continue
            for each, offset in zip(taken, offsets, strict=True):
                if not each.offset.done():
                    each.offset.set_result(offset)

    async def _flush_one_by_one(self, taken: list[_Waiting], error: HeadraceError) -> None:
        """After a refusal: one wrong message must not fail those that came with it."""
        for each in taken:
            if len(taken) > 1:
                try:
                    (offset,) = await self._run(partial(self._topics.append, [each.output]))
                except HeadraceError as own:
                    error = own
                else:
                    each.offset.set_result(offset)
                    continue
            if not each.offset.done():
                each.offset.set_exception(error)

    async def produce_batch(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int = 0,
    ) -> list[int]:
        check_keys(topic, values, keys)
        outputs = [
            Output(topic, value, keys[n] if keys else None, partition)
            for n, value in enumerate(values)
        ]
        offsets: list[int] = []
        for step in _steps(outputs):
            offsets += await self._run(partial(self._topics.append, step))
        return offsets

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
        fetch = partial(self._topics.fetch, topic, offset, max_records, partition)
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            growth = self._growth
            grown = growth.next_change() if growth else None
            batch = await self._run(fetch)
            left = deadline - asyncio.get_running_loop().time()
            if batch.num_rows or left <= 0 or grown is None:
                return batch
            await asyncio.wait([asyncio.wrap_future(grown)], timeout=left)

    async def begin_offset(self, topic: str, *, partition: int = 0) -> int:
        begin, _ = await self._run(partial(self._topics.bounds, topic, partition))
        return int(begin)

    async def end_offset(self, topic: str, *, partition: int = 0) -> int:
        _, end = await self._run(partial(self._topics.bounds, topic, partition))
        return int(end)

    async def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0
    ) -> None:
        await self._run(partial(self._topics.commit_offset, group, topic, offset, partition))

    async def get_committed_offset(
        self, group: str, topic: str, *, partition: int = 0
    ) -> int | None:
        found = await self._run(partial(self._topics.committed, group, topic, partition))
        return None if found is None else int(found)

    async def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> int | None:
        found = await self._run(partial(self._topics.least_committed, topic, partition))
        return None if found is None else int(found)

    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        return list(await self._run(partial(self._topics.produce_and_commit, outputs, commit)))

    async def truncate_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        await self._run(partial(self._topics.truncate_before, topic, offset, partition))


class _Growth:
    """Follows the heads of the workspace's journals, so that a fetch can wait for a message."""

    def __init__(self, workspace: Workspace, topics: LocalTopics) -> None:
        self._topics = topics
        self._lock = threading.Lock()
        self._next: Future[None] = Future()
        self._closed = False
        self._watch: Watch = workspace.watch()
        self._thread = threading.Thread(
            target=self._follow, name="headrace-queues-watch", daemon=True
        )
        self._thread.start()

    def next_change(self) -> Future[None]:
        """Return a future that is done at the next change of any journal."""
        with self._lock:
            return self._next

    def _follow(self) -> None:
        while not self._closed:
            try:
                changes = self._watch.next(_WATCH_S)
            except HeadraceError:
                self._closed = True
            else:
                self._topics.heads_moved(changes.heads)
            with self._lock:
                done, self._next = self._next, Future()
            done.set_result(None)

    def close(self) -> None:
        self._closed = True
        self._watch.close()
        self._thread.join()


def _take_step(waiting: list[_Waiting]) -> list[_Waiting]:
    """Take as many messages from the front as one step may have."""
    size = count = 0
    for each in waiting:
        size += output_bytes([each.output])
        if count and size > STEP_BYTES_MAX:
            break
        count += 1
    taken = waiting[:count]
    del waiting[:count]
    return taken


def _steps(outputs: Sequence[Output]) -> Iterator[list[Output]]:
    """Split outputs into as few steps as their sizes allow."""
    step: list[Output] = []
    size = 0
    for output in outputs:
        size += output_bytes([output])
        if step and size > STEP_BYTES_MAX:
            yield step
            step, size = [], output_bytes([output])
        step.append(output)
    if step:
        yield step
