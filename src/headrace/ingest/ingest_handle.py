"""What programs hold of a write coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self

from headrace.errors import CommitOutcome, HeadraceError, InDoubtError, QueueFullError
from headrace.ingest.actor import CoordinatorActor, DeltaBatch, delta_batch
from headrace.ingest.contract import D, Epoch, FlushHandler, S
from headrace.ingest.ingest_metrics import IngestMetrics
from headrace.ingest.snapshot_channel import SnapshotChannel
from headrace.ingest.state import View
from headrace.settings import IngestSettings


class Patience:
    """How long a call still waits; without end if it began with None."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        left_s = max(0.0, self._deadline_s - time.monotonic())
        return min(left_s, threading.TIMEOUT_MAX)  # infinite, say


class Subscription(Generic[S]):
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

    def next(self, timeout_s: float | None = None) -> S:
        """Wait for a snapshot after the last one, and return it.

        Raises TimeoutError if none came in time, and the error that ended the coordinator.
        """
        told = self._channel.after(self.epoch)
        try:
            told.result(Patience(timeout_s).left_s())
        finally:
            self._channel.forget(told)
        self._channel.after(self.epoch)  # raises if what came was the end
        return self.newest


class Coordinator(Generic[D, S]):
    """Merges the writes of any number of threads, and flushes them by a handler."""

    def __init__(
        self,
        handler: FlushHandler[D, S],
        new_delta: Callable[[], D],
        snapshot: S,
        settings: IngestSettings | None = None,
        name: str = "ingest",
    ) -> None:
        """Prepare a coordinator. `snapshot` shows what the store holds; errors begin with `name`.

        The caller makes sure that a store has one coordinator at a time.
        """
        self.actor = CoordinatorActor(
            handler, new_delta, snapshot, settings or IngestSettings(), name
        )

    def start(self) -> IngestHandle[D, S]:
        self.actor.start()
        return IngestHandle(self.actor)


class IngestHandle(Generic[D, S]):
    """Writes to a coordinator that runs, and reads from it. Any thread may use it."""

    def __init__(self, actor: CoordinatorActor[D, S]) -> None:
        self.actor = actor

    def write(self, delta: D, timeout_s: float | None = 0.0) -> Epoch:
        """Take a write and return its epoch. It is not durable yet: see `flush`.

        If too much waits already, this waits up to `timeout_s` for room, without end if that is
        None, and then raises QueueFullError. Then the delta is as it was: write the same again.
        """
        try:
            return self.actor.write(delta)
        except QueueFullError:
            if timeout_s == 0:
                raise
        return self._write_later(delta_batch([delta]), Patience(timeout_s))

    def write_all(self, deltas: Sequence[D], timeout_s: float | None = 0.0) -> Epoch:
        """Take all of the writes or none, as `write` does; return the epoch of the last."""
        batch = delta_batch(deltas)
        try:
            return self.actor.write_all(batch)
        except QueueFullError:
            if timeout_s == 0:
                raise
        return self._write_later(batch, Patience(timeout_s))

    def write_durable(self, delta: D, timeout_s: float | None = None) -> Epoch:
        """Take a write, wait until it is durable, and return its epoch.

        Raises QueueFullError if it found no room in time, and InDoubtError if it was taken, but is
        not durable in time.
        """
        patience = Patience(timeout_s)
        epoch = self.write(delta, timeout_s)
        return self.flush(epoch, patience.left_s())

    def flush(self, epoch: Epoch | None = None, timeout_s: float | None = None) -> Epoch:
        """Return when the writes up to that epoch are durable; all writes so far if it is None.

        Returns the epoch. Raises InDoubtError if that takes longer than `timeout_s`, and the error
        of the coordinator if it failed.
        """
        patience = Patience(timeout_s)
        epoch, durable = self.actor.wait_durable(epoch)
        self._wait(epoch, durable, patience)
        return epoch

    def snapshot(self) -> S:
        """Return the newest snapshot. It shows whole flushes only."""
        return self.actor.snapshots.newest.snapshot

    def view(self) -> View[D, S]:
        """Return all writes so far: a snapshot, and the deltas that it does not show."""
        return self.actor.view()

    def subscribe(self) -> Subscription[S]:
        return Subscription(self.actor.snapshots)

    def metrics(self) -> IngestMetrics:
        return self.actor.metrics()

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Refuse writes, flush what was taken, and return when all is durable.

        Raises what kept any of it from being so, as often as it is called, and InDoubtError if it
        takes longer than `timeout_s`. Do not use the handler before this returned or raised
        anything but that.
        """
        patience = Patience(timeout_s)
        epoch, durable = self.actor.close()
        try:
            self._wait(epoch, durable, patience)
        except InDoubtError:
            raise
        except HeadraceError as error:
            self.join_failed(error, patience)
            raise
        self.actor.join(patience.left_s())

    def join_failed(self, error: HeadraceError, patience: Patience) -> None:
        """Wait until the handler of a coordinator that failed has returned from its last call.

        Raises InDoubtError if it has not in time.
        """
        if not self.actor.join(patience.left_s()):
            raise InDoubtError(
                f"{error.what}; its handler has not returned, and the time is over",
                do="call shutdown() again before the handler is used",
            ) from error

    def _write_later(self, batch: DeltaBatch[D], patience: Patience) -> Epoch:
        with self.actor.in_line(batch) as ticket:
            with suppress(TimeoutError):
                ticket.granted.result(patience.left_s())
            return self.actor.write_all(batch, ticket)

    def _wait(self, epoch: Epoch, durable: Future[None], patience: Patience) -> None:
        try:
            durable.result(patience.left_s())
            return None
        except TimeoutError:
            if durable.done():
                return durable.result()
        except KeyboardInterrupt:
            self.actor.forget(epoch, durable)
            raise
        self.actor.forget(epoch, durable)
        raise self.actor.in_doubt(epoch, self.outcome_of(epoch))

    def outcome_of(self, epoch: Epoch) -> Callable[[float], CommitOutcome]:
        def ask(timeout_s: float) -> CommitOutcome:
            self.flush(epoch, timeout_s)
            return CommitOutcome.COMMITTED

        return ask

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
