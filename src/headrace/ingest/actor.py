"""The threads of a coordinator, and the two locks that its callers share with them.

Writers hold the lock of the queue, for as long as it takes to append. Whoever changes the state
holds the lock of the state: the coordinator's own thread, which merges and watches the timer, a
thread that ended a flush or a sync, or a caller who wants a flush or a view. Each takes a step, and
carries out what the state asks for before it lets go. Where both locks are held, the state's was
taken first.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple

from headrace.errors import CommitOutcome, HeadraceError, InDoubtError, QueueFullError, UsageError
from headrace.ingest.contract import D, Epoch, FlushHandler, S
from headrace.ingest.effects import (
    AnswerWaiters,
    Completion,
    CoordinatorEffect,
    FlushFailed,
    FlushSucceeded,
    FlushTrigger,
    PublishSnapshot,
    RefuseWrites,
    StartFlush,
    StartSync,
    StopThreads,
    SyncFailed,
    SyncSucceeded,
)
from headrace.ingest.ingest_metrics import IngestMetrics
from headrace.ingest.snapshot_channel import SnapshotChannel
from headrace.ingest.state import CoordinatorPhase, CoordinatorState, View
from headrace.ingest.write_queue import RoomTicket, WriteQueue, same_error
from headrace.settings import IngestSettings


def shared_future() -> Future[Any]:
    """Return a future that nobody who waits for it can cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class DeltaBatch(NamedTuple, Generic[D]):
    """Writes that are taken together, none of them empty."""

    deltas: Sequence[D]
    size_bytes: int


def delta_batch(deltas: Sequence[D]) -> DeltaBatch[D]:
    written = [delta for delta in deltas if not delta.is_empty]
    return DeltaBatch(written, sum([delta.size_bytes for delta in written]))


class CoordinatorActor(Generic[D, S]):
    """One coordinator at work, for any number of threads. See `IngestHandle`."""

    def __init__(
        self,
        handler: FlushHandler[D, S],
        new_delta: Callable[[], D],
        snapshot: S,
        settings: IngestSettings,
        name: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = os.getpid()
        self._handler = handler
        self._name = name
        self._now_s = now_s
        self._queue = WriteQueue[D](settings, name)
        self._state = CoordinatorState[D, S](new_delta, snapshot, settings, name)
        self.snapshots = SnapshotChannel(snapshot)
        self._queue_lock = threading.Lock()
        self._work = threading.Condition(self._queue_lock)
        self._state_lock = threading.Lock()
        self._is_waiting = False
        self._is_idle = True
        """True if nothing is pending: the next write is to be merged, so that its timer runs."""
        self._deadline_s: float | None = None
        self._forgotten: deque[tuple[Epoch, Future[None]]] = deque()
        self._is_stopping = False
        self._flushes: SimpleQueue[StartFlush[D, S] | None] = SimpleQueue()
        self._syncs: SimpleQueue[StartSync | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"headrace-{part}-{name}", daemon=True)
            for part, target in (
                ("ingest", self._run),
                ("flush", self._run_flushes),
                ("sync", self._run_syncs),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    # What callers ask

    def write(self, delta: D) -> Epoch:
        self._check_process()
        with self._queue_lock:
            try:
                epoch = self._queue.add(delta)
            except QueueFullError:
                self._work.notify()
                raise
            if self._is_waiting and (self._is_idle or self._queue.is_much):
                self._work.notify()
        return epoch

    def write_all(self, batch: DeltaBatch[D], ticket: RoomTicket | None = None) -> Epoch:
        self._check_process()
        with self._queue_lock:
            try:
                epoch = self._queue.add_all(batch.deltas, batch.size_bytes, ticket)
            except QueueFullError:
                self._work.notify()
                raise
            if self._is_waiting and (self._is_idle or self._queue.is_much):
                self._work.notify()
        return epoch

    @contextmanager
    def in_line(self, batch: DeltaBatch[D]) -> Iterator[RoomTicket]:
        """Wait for room while the block runs. The ticket tells when there is some."""
        self._check_process()
        ticket = RoomTicket(len(batch.deltas), batch.size_bytes, shared_future())
        try:
            with self._queue_lock:
                self._queue.wait_for_room(ticket)
                self._grant_room()
                self._work.notify()
            yield ticket
        finally:
            with self._queue_lock:
                self._queue.leave(ticket)
                self._grant_room()

    def wait_durable(self, epoch: Epoch | None) -> tuple[Epoch, Future[None]]:
        """Return the epoch, and what is done when that is durable. None means all writes so far."""
        self._check_process()
        with self._queue_lock:
            last = self._queue.last
        if epoch is None:
            epoch = last
        elif not 0 <= epoch <= last:
            raise UsageError(
                f"{self._name}: epoch {epoch} was not given to any write, the last is {last}",
                do="flush an epoch that a write returned",
            )
        waiter: Future[None] = shared_future()
        with self._changing():
            self._carry_out(self._state.wait_for(epoch, waiter))
        return epoch, waiter

    def forget(self, epoch: Epoch, waiter: Future[None]) -> None:
        """Do not keep a waiter that gave up. Takes no lock: an event loop may call it."""
        self._forgotten.append((epoch, waiter))

    def view(self) -> View[D, S]:
        self._check_process()
        with self._changing():
            self._step()
            view = None if self._state.failure else self._state.view()
        if view is None:
            assert self._state.failure
            raise same_error(self._state.failure)
        return view

    def close(self) -> tuple[Epoch, Future[None]]:
        """Refuse writes; return the last epoch, and what is done when that is durable."""
        self._check_process()
        waiter: Future[None] = shared_future()
        with self._changing():
            self._carry_out(self._state.close())
            last = self._queue.last
            self._carry_out(self._state.wait_for(last, waiter))
        return last, waiter

    def in_doubt(self, epoch: Epoch, ask: Callable[[float], CommitOutcome]) -> InDoubtError:
        return InDoubtError(
            f"{self._name}: epoch {epoch} is not durable yet, and the time is over",
            do=f"call flush({epoch}) to go on waiting; do not write the same again",
            ask=ask,
        )

    def metrics(self) -> IngestMetrics:
        self._check_process()
        with self._state_lock, self._queue_lock:
            state, queue = self._state, self._queue
            figures, oldest_s = state.figures, state.oldest_s
            return IngestMetrics(
                phase=state.phase,
                epoch=queue.last,
                flushed_epoch=state.flushed,
                durable_epoch=state.durable,
                queued_writes=queue.depth,
                queued_bytes=queue.queued_bytes,
                pending_bytes=state.pending_bytes,
                frozen_bytes=state.frozen_bytes,
                refused_writes=queue.refused,
                waiters=state.waiters,
                undurable_s=0.0 if oldest_s is None else self._now_s() - oldest_s,
                request_flushes=figures.by_trigger[FlushTrigger.REQUEST],
                timer_flushes=figures.by_trigger[FlushTrigger.TIMER],
                size_flushes=figures.by_trigger[FlushTrigger.SIZE],
                failures=figures.failures,
                flushed_bytes=figures.bytes,
                flush_s=figures.flush_s,
                last_flush_s=figures.last_flush_s,
                syncs=figures.syncs,
                sync_s=figures.sync_s,
                last_sync_s=figures.last_sync_s,
            )

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the threads to end; return False if one did not."""
        deadline_s = None if timeout_s is None else self._now_s() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(0.0, deadline_s - self._now_s()))
        return not any(thread.is_alive() for thread in self._threads)

    def _check_process(self) -> None:
        """Raise UsageError in a process that was forked: it has none of the threads."""
        if os.getpid() != self._process:
            raise UsageError(
                f"{self._name} was opened before the process forked", do="open it again here"
            )

    # Steps

    @contextmanager
    def _changing(self, *completions: Completion) -> Iterator[None]:
        """Hold the state's lock; take a step before letting go."""
        with self._state_lock:
            try:
                yield
                self._step(completions)
            except BaseException as error:
                # After Ctrl-C, say, nobody knows how much was merged.
                self._carry_out(self._state.fail(error, "a step was interrupted"))
                raise

    def _step(self, completions: Sequence[Completion] = ()) -> None:
        while self._forgotten:
            self._state.forget(*self._forgotten.popleft())
        with self._queue_lock:
            writes = self._queue.take()
        self._carry_out(self._state.step(self._now_s(), writes, completions))
        with self._queue_lock:
            self._queue.held_bytes = self._state.held_bytes
            self._grant_room()
            self._is_idle = self._state.phase is CoordinatorPhase.IDLE
            is_late = self._is_idle and self._queue.depth  # it came after `take`
            if is_late or self._deadline_s != self._state.deadline_s:
                self._deadline_s = self._state.deadline_s
                self._work.notify()

    def _grant_room(self) -> None:
        for ticket in self._queue.grant():
            ticket.granted.set_result(None)

    def _carry_out(self, effects: Sequence[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case StartFlush():
                    self._flushes.put(effect)
                case StartSync():
                    self._syncs.put(effect)
                case PublishSnapshot(snapshot, epoch):
                    self.snapshots.publish(snapshot, epoch)
                case AnswerWaiters(waiters, error):
                    for waiter in waiters:
                        if error is None:
                            waiter.set_result(None)
                        else:
                            waiter.set_exception(same_error(error))
                case RefuseWrites(error):
                    self._refuse(error)
                case StopThreads():
                    self._stop()

    def _refuse(self, error: HeadraceError) -> None:
        with self._queue_lock:
            self._queue.refuse(error)
            self._grant_room()
        if self._state.failure:
            self.snapshots.end(error)

    def _stop(self) -> None:
        self._flushes.put(None)
        self._syncs.put(None)
        if not self._state.failure:
            self.snapshots.end(UsageError(f"{self._name} is closed", do="open it again"))
        with self._queue_lock:
            self._is_stopping = True
            self._work.notify()

    # Threads

    def _run(self) -> None:
        while self._wait_for_work():
            with self._changing():
                """The step is all."""

    def _wait_for_work(self) -> bool:
        """Wait for writes to merge, or for the timer; return False to stop.

        While writes are pending, or a flush runs, a few more may stay in the queue: whatever ends
        that takes them, too.
        """
        with self._queue_lock:
            while not self._is_stopping:
                queue = self._queue
                if queue.is_short or queue.is_much or (self._is_idle and queue.depth):
                    return True
                patience_s = None
                if self._deadline_s is not None:
                    patience_s = self._deadline_s - self._now_s()
                    if patience_s <= 0:
                        return True
                self._is_waiting = True
                self._work.wait(patience_s)
                self._is_waiting = False
            return False

    def _run_flushes(self) -> None:
        while start := self._flushes.get():
            self._complete(self._flush(start))
            del start

    def _flush(self, start: StartFlush[D, S]) -> Completion:
        began_s = self._now_s()
        try:
            result = self._handler.execute_flush(start.delta, start.snapshot)
        except BaseException as error:  # noqa: BLE001  all who wait get it
            return FlushFailed(error)
        return FlushSucceeded(result, self._now_s() - began_s)

    def _run_syncs(self) -> None:
        while start := self._syncs.get():
            self._complete(self._sync(start))

    def _sync(self, start: StartSync) -> Completion:
        began_s = self._now_s()
        try:
            self._handler.wait_durable(start.sequence)
        except BaseException as error:  # noqa: BLE001  all who wait get it
            return SyncFailed(error)
        return SyncSucceeded(self._now_s() - began_s)

    def _complete(self, completion: Completion) -> None:
        with self._changing(completion):
            """The step is all."""
