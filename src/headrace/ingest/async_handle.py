"""A write coordinator for programs that run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self

from headrace.errors import HeadraceError, InDoubtError, QueueFullError
from headrace.ingest.actor import CoordinatorActor, DeltaBatch, delta_batch
from headrace.ingest.contract import D, Epoch, S
from headrace.ingest.ingest_handle import IngestHandle, Patience
from headrace.ingest.ingest_metrics import IngestMetrics
from headrace.ingest.snapshot_channel import SnapshotChannel
from headrace.ingest.state import View


async def _done(future: Future[Any], patience: Patience) -> None:
    """Wait for a future that threads share. Raises TimeoutError if it is not done in time."""
    if future.done():
        future.result()
    else:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), patience.left_s())


class AsyncSubscription(Generic[S]):
    """Snapshots as they are published. A slow reader misses those between, never the newest."""

    def __init__(self, channel: SnapshotChannel[S]) -> None:
        self._channel = channel
        self.epoch = channel.newest.epoch
        """What the last snapshot that this subscription returned shows."""

    @property
    def newest(self) -> S:
        newest = self._channel.newest
        self.epoch = newest.epoch
        return newest.snapshot

    async def next(self, timeout_s: float | None = None) -> S:
        """Wait for a snapshot after the last one, and return it.

        Raises TimeoutError if none came in time, and the error that ended the coordinator.
        """
        told = self._channel.after(self.epoch)
        try:
            await _done(told, Patience(timeout_s))
        finally:
            self._channel.forget(told)
        self._channel.after(self.epoch)  # raises if what came was the end
        return self.newest


class AsyncIngestHandle(Generic[D, S]):
    """What `IngestHandle` does, as coroutines. None of them keeps the event loop waiting."""

    def __init__(self, handle: IngestHandle[D, S]) -> None:
        self._handle = handle
        self._actor: CoordinatorActor[D, S] = handle.actor

    async def write(self, delta: D, timeout_s: float | None = 0.0) -> Epoch:
        try:
            return self._actor.write(delta)
        except QueueFullError:
            if timeout_s == 0:
                raise
        return await self._write_later(delta_batch([delta]), Patience(timeout_s))

    async def write_all(self, deltas: Sequence[D], timeout_s: float | None = 0.0) -> Epoch:
        batch = delta_batch(deltas)
        try:
            return self._actor.write_all(batch)
        except QueueFullError:
            if timeout_s == 0:
                raise
        return await self._write_later(batch, Patience(timeout_s))

    async def write_durable(self, delta: D, timeout_s: float | None = None) -> Epoch:
        patience = Patience(timeout_s)
        epoch = await self.write(delta, timeout_s)
        return await self.flush(epoch, patience.left_s())

    async def flush(self, epoch: Epoch | None = None, timeout_s: float | None = None) -> Epoch:
        patience = Patience(timeout_s)
        # A step may merge for a while.
        found, durable = await asyncio.to_thread(self._actor.wait_durable, epoch)
        await self._wait(found, durable, patience)
        return found

    def snapshot(self) -> S:
        return self._handle.snapshot()

    async def view(self) -> View[D, S]:
        return await asyncio.to_thread(self._actor.view)

    def subscribe(self) -> AsyncSubscription[S]:
        return AsyncSubscription(self._actor.snapshots)

    async def metrics(self) -> IngestMetrics:
        return await asyncio.to_thread(self._actor.metrics)

    async def shutdown(self, timeout_s: float | None = None) -> None:
        patience = Patience(timeout_s)
        epoch, durable = await asyncio.to_thread(self._actor.close)
        try:
            await self._wait(epoch, durable, patience)
        except InDoubtError:
            raise
        except HeadraceError as error:
            await asyncio.to_thread(self._handle.join_failed, error, patience)
            raise
        await asyncio.to_thread(self._actor.join, patience.left_s())

    async def _write_later(self, batch: DeltaBatch[D], patience: Patience) -> Epoch:
        with self._actor.in_line(batch) as ticket:
            with suppress(TimeoutError):
                await _done(ticket.granted, patience)
            return self._actor.write_all(batch, ticket)

    async def _wait(self, epoch: Epoch, durable: Future[None], patience: Patience) -> None:
        try:
            await _done(durable, patience)
            return None
        except TimeoutError:
            if durable.done():
                return durable.result()
        except asyncio.CancelledError:
            self._actor.forget(epoch, durable)
            raise
        self._actor.forget(epoch, durable)
        raise self._actor.in_doubt(epoch, self._handle.outcome_of(epoch))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown()
