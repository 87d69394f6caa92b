"""The write coordinator: when to flush, who is answered, and what readers see.

Writes are merged into one *pending* delta. A flush freezes it and moves it into storage, while the
next one fills. One flush runs at a time, so flushes complete in order. Beside it, one wait for
durability runs, always for the newest flush that is complete, so several may wait for one sync.

**Order.** Merge, flush, publish the snapshot, advance `flushed`, wait for storage, advance
`durable`, answer. So whoever learns that an epoch is flushed finds it in the snapshot.

**Triggers.** At each step the coordinator takes what has arrived in this order: completions, then
commands, then the timer, then the size. A step takes what is there and no more, so that a stream of
commands cannot keep the timer waiting.

**Failure.** If a flush or a sync fails, or a merge, nobody knows what storage holds beyond
`durable`. Every waiter gets the error, and so does every later call. Nothing is tried again.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple

from headrace.errors import (
    REPORT,
    HeadraceError,
    InDoubtError,
    QueueFullError,
    StorageError,
    UsageError,
    from_wire,
)
from headrace.ingest.contract import D, Epoch, S
from headrace.ingest.effects import (
    AnswerWaiters,
    Completion,
    CoordinatorEffect,
    EpochRange,
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
from headrace.ingest.write_queue import QueuedWrites
from headrace.settings import IngestSettings

Waiter = Hashable


class CoordinatorPhase(StrEnum):
    IDLE = "idle"
    """Nothing is pending, and no flush runs."""
    ACCUMULATING = "accumulating"
    """Writes are pending, and no flush runs."""
    FLUSHING = "flushing"
    """A flush runs; new writes go into the next delta."""
    FAILED = "failed"
    """Every call gets the error."""
    STOPPED = "stopped"
    """It was closed, and all is durable."""


@dataclass(frozen=True, slots=True)
class View(Generic[D, S]):
    """All writes up to an epoch: a snapshot, and the deltas that it does not show."""

    snapshot: S
    flushed: Epoch
    """The snapshot shows every write up to this one, and the deltas show those after it."""
    frozen: tuple[D, ...]
    """What is being flushed, newest first. Nobody changes it."""
    pending: D | None
    """A copy of what waits for the next flush, newer than `frozen`."""
    epoch: Epoch
    """The last write that the view shows."""

    @property
    def deltas(self) -> tuple[D, ...]:
        """All deltas, newest first."""
        return self.frozen if self.pending is None else (self.pending, *self.frozen)


class _Part(NamedTuple):
    """Writes that went into storage together."""

    epochs: EpochRange
    bytes: int
    since_s: float
    """When the first of them was merged."""
    sequence: int = 0


@dataclass
class FlushFigures:
    """What the flushes of a coordinator came to."""

    by_trigger: Counter[FlushTrigger] = field(default_factory=Counter)
    bytes: int = 0
    failures: int = 0
    flush_s: float = 0.0
    last_flush_s: float = 0.0
    syncs: int = 0
    sync_s: float = 0.0
    last_sync_s: float = 0.0


class CoordinatorState(Generic[D, S]):
    """The deltas and watermarks of one coordinator. Each call returns what the actor is to do."""

    def __init__(
        self, new_delta: Callable[[], D], snapshot: S, settings: IngestSettings, name: str
    ) -> None:
        self._new_delta = new_delta
        self._settings = settings
        self._name = name
        self.snapshot = snapshot
        self.flushed = Epoch(0)
        self.durable = Epoch(0)
        self.merged = Epoch(0)
        """The last epoch that is in `pending`, or was."""
        self.failure: HeadraceError | None = None
        self.figures = FlushFigures()
        self.frozen_bytes = 0
        """Bytes of what is being flushed, or waits to be durable."""
        self._pending = new_delta()
        self._pending_copy: D | None = None
        self._since_s = 0.0
        self._flushing: tuple[_Part, D] | None = None
        self._undurable: deque[_Part] = deque()
        self._syncing: Epoch | None = None
        self._waiters: dict[Epoch, list[Waiter]] = {}
        self._waited_for: list[Epoch] = []
        self._requested = Epoch(0)
        self._is_short = False
        self._is_closing = False
        self._is_stopped = False

    # What is asked

    def step(
        self, now_s: float, writes: QueuedWrites[D], completions: Sequence[Completion] = ()
    ) -> list[CoordinatorEffect]:
        """Take what has arrived, by priority, and begin a flush if one is due."""
        effects: list[CoordinatorEffect] = []
        for completion in completions:
            effects += self._complete(completion)
        if self.failure is None:
            effects += self._merge(now_s, writes)
        is_pending = self.merged > self._frozen
        self._is_short = (self._is_short or writes.is_short) and is_pending
        if self.failure is None and self._flushing is None:
            effects += self._begin_flush(now_s)
        return effects + self._stop()

    def wait_for(self, epoch: Epoch, waiter: Waiter) -> list[CoordinatorEffect]:
        """Answer when that epoch is durable, and have it flushed without delay.

        The write may still be in the queue: the next step takes it.
        """
        if self.failure or epoch <= self.durable:
            return [AnswerWaiters((waiter,), self.failure)]
        if epoch not in self._waiters:
            heapq.heappush(self._waited_for, epoch)
        self._waiters.setdefault(epoch, []).append(waiter)
        self._requested = max(self._requested, epoch)
        return []

    def forget(self, epoch: Epoch, waiter: Waiter) -> None:
        """Do not answer a waiter that gave up."""
        waiters = self._waiters.get(epoch, [])
        if waiter in waiters:
            waiters.remove(waiter)

    def close(self) -> list[CoordinatorEffect]:
        """Refuse writes. From the next step on, flush all; stop when it is durable."""
        self._is_closing = True
        if self.failure is not None:
            return []
        return [RefuseWrites(UsageError(f"{self._name} is closed", do="open it again"))]

    def fail(self, error: BaseException, what: str) -> list[CoordinatorEffect]:
        """Give up: an error says why. Only the first one counts."""
        if self.failure is not None:
            return []
        self.figures.failures += 1
        self.failure = _failure(self._name, what, error, self.durable)
        waiters = tuple(each for epoch in sorted(self._waiters) for each in self._waiters[epoch])
        self._waiters.clear()
        self._waited_for.clear()
        del self._pending  # Nobody merges any more. To make another might fail, too.
        self._pending_copy = None
        self._undurable.clear()
        self.frozen_bytes = 0
        self._flushing = self._syncing = None
        self._is_stopped = False  # Ctrl-C may have come before the threads were told.
        return [RefuseWrites(self.failure), AnswerWaiters(waiters, self.failure)]

    def view(self) -> View[D, S]:
        """Return all that was merged. The caller takes a step before, to merge what is queued."""
        if self._pending_copy is None and self.merged > self._frozen:
            self._pending_copy = self._pending.copy()
        frozen = () if self._flushing is None else (self._flushing[1],)
        return View(self.snapshot, self.flushed, frozen, self._pending_copy, self.merged)

    # What is known

    @property
    def phase(self) -> CoordinatorPhase:
        if self.failure is not None:
            return CoordinatorPhase.FAILED
        if self._is_stopped:
            return CoordinatorPhase.STOPPED
        if self._flushing is not None:
            return CoordinatorPhase.FLUSHING
        is_pending = self.merged > self._frozen
        return CoordinatorPhase.ACCUMULATING if is_pending else CoordinatorPhase.IDLE

    @property
    def deadline_s(self) -> float | None:
        """When the timer begins a flush; None if nothing is pending, or a flush runs anyway."""
        if self.phase != CoordinatorPhase.ACCUMULATING:
            return None
        return self._since_s + self._settings.flush_interval_s

    @property
    def pending_bytes(self) -> int:
        is_pending = self.failure is None and self.merged > self._frozen
        return self._pending.size_bytes if is_pending else 0

    @property
    def held_bytes(self) -> int:
        """Bytes of all that was merged and is not durable."""
        return self.pending_bytes + self.frozen_bytes

    @property
    def oldest_s(self) -> float | None:
        """When the oldest write that is not durable was merged; None if all are durable."""
        if self._undurable:
            return self._undurable[0].since_s
        if self._flushing:
            return self._flushing[0].since_s
        return self._since_s if self.merged > self._frozen else None

    @property
    def waiters(self) -> int:
        return sum(map(len, self._waiters.values()))

    # What a step does

    def _complete(self, completion: Completion) -> list[CoordinatorEffect]:
        if self.failure is not None:
            return []
        match completion:
            case FlushSucceeded():
                return self._publish(completion)
            case FlushFailed(error):
                return self.fail(error, "a flush failed")
            case SyncSucceeded():
                return self._advance_durable(completion)
            case SyncFailed(error):
                return self.fail(error, "storage could not make a flush durable")

    def _publish(self, completion: FlushSucceeded[S]) -> list[CoordinatorEffect]:
        assert self._flushing is not None
        (part, _), self._flushing = self._flushing, None
        self.figures.bytes += part.bytes
        self.figures.flush_s += completion.took_s
        self.figures.last_flush_s = completion.took_s
        self.snapshot = completion.result.snapshot
        self.flushed = part.epochs.last
        self._undurable.append(part._replace(sequence=completion.result.sequence))
        return [PublishSnapshot(self.snapshot, self.flushed), *self._sync()]

    def _sync(self) -> list[CoordinatorEffect]:
        """Wait for the newest flush: it is durable only after all before it are."""
        if self._syncing is not None or not self._undurable:
            return []
        newest = self._undurable[-1]
        self._syncing = newest.epochs.last
        return [StartSync(newest.sequence, newest.epochs.last)]

    def _advance_durable(self, completion: SyncSucceeded) -> list[CoordinatorEffect]:
        assert self._syncing is not None
        self.figures.syncs += 1
        self.figures.sync_s += completion.took_s
        self.figures.last_sync_s = completion.took_s
        self.durable, self._syncing = self._syncing, None
        while self._undurable and self._undurable[0].epochs.last <= self.durable:
            self.frozen_bytes -= self._undurable.popleft().bytes
        answered: list[Waiter] = []
        while self._waited_for and self._waited_for[0] <= self.durable:
            answered += self._waiters.pop(heapq.heappop(self._waited_for))
        answers = [AnswerWaiters(tuple(answered), None)] if answered else []
        return [*answers, *self._sync()]

    def _merge(self, now_s: float, writes: QueuedWrites[D]) -> list[CoordinatorEffect]:
        if writes.last <= self.merged:
            return []
        if self.merged == self._frozen:
            self._since_s = now_s
        self._pending_copy = None
        merge = self._pending.merge
        try:
            for delta in writes.deltas:
                merge(delta)
        except Exception as error:  # noqa: BLE001  all who wait get it
            return self.fail(error, "writes could not be merged")
        self.merged = writes.last
        return []

    def _begin_flush(self, now_s: float) -> list[CoordinatorEffect]:
        try:
            trigger = self._trigger(now_s)
            return [] if trigger is None else [self._freeze(trigger)]
        except Exception as error:  # noqa: BLE001  all who wait get it
            return self.fail(error, "a flush could not begin")

    def _trigger(self, now_s: float) -> FlushTrigger | None:
        if self.merged == self._frozen:
            return None
        if self._is_closing or self._requested > self._frozen:
            return FlushTrigger.REQUEST
        if now_s >= self._since_s + self._settings.flush_interval_s:
            return FlushTrigger.TIMER
        if self._is_short or self._pending.size_bytes >= self._settings.flush_at_bytes:
            return FlushTrigger.SIZE
        return None

    def _freeze(self, trigger: FlushTrigger) -> StartFlush[D, S]:
        epochs = EpochRange(Epoch(self._frozen + 1), Epoch(self.merged + 1))
        delta, self._pending = self._pending, self._new_delta()
        self._pending_copy = None
        self._flushing = _Part(epochs, delta.size_bytes, self._since_s), delta
        self.frozen_bytes += self._flushing[0].bytes
        self._is_short = False
        self.figures.by_trigger[trigger] += 1
        return StartFlush(delta, self.snapshot, epochs)

    def _stop(self) -> list[CoordinatorEffect]:
        """Stop when closing has nothing left to do. The closer takes a step first."""
        if not self._is_closing or self._is_stopped:
            return []
        if self.failure is None and self.merged > self.durable:
            return []
        self._is_stopped = True
        return [StopThreads()]

    @property
    def _frozen(self) -> Epoch:
        """The last epoch of which a flush began."""
        return self._flushing[0].epochs.last if self._flushing else self.flushed

    def validate(self) -> None:
        """Check what always holds."""
        assert self.durable <= self.flushed <= self._frozen <= self.merged
        assert list(self._waiters) == [] or min(self._waiters) > self.durable
        assert sorted(self._waited_for) == sorted(self._waiters)
        if self.failure is not None:
            assert not self._waiters
            assert self._flushing is None
            assert self._syncing is None
            return
        end = self.durable + 1
        parts = (*self._undurable, *((self._flushing[0],) if self._flushing else ()))
        assert self.frozen_bytes == sum(part.bytes for part in parts)
        for part in parts:
            assert part.epochs.start == end
            assert part.epochs.start < part.epochs.end
            end = part.epochs.end
        assert end == self._frozen + 1
        assert (self._syncing is None) == (not self._undurable)
        if self._syncing is not None:
            assert self.durable < self._syncing <= self.flushed
        if self._is_stopped:
            assert self.durable == self.merged


def _failure(name: str, what: str, error: BaseException, durable: Epoch) -> HeadraceError:
    do = f"open the store again: it keeps the writes up to epoch {durable}, and perhaps later ones"
    if isinstance(error, QueueFullError | InDoubtError):
        # Callers would write again, or go on waiting.
        failure: HeadraceError = StorageError(f"{name}: {what}: {error.what}", do=do)
    elif isinstance(error, HeadraceError):
        kind = type(error).__name__
        failure = from_wire(kind, f"{name}: {what}: {error.what}", error.do or do)
    elif isinstance(error, OSError):
        failure = StorageError(f"{name}: {what}: {error.strerror or error}", do=do)
    else:
        failure = HeadraceError(f"{name}: {what}: {type(error).__name__}: {error}", do=REPORT)
    failure.__cause__ = error
    return failure
