"""Random histories of a write coordinator whose storage is slow, fails and crashes.

One seed decides everything. The queue and the state are the real ones, without threads. The oracle
is a list: what the store holds after each write. It knows which epochs were answered, and compares
every snapshot, view and answer, and what is left after each crash.

    python -m headrace.testing.ingest.ingest_simulator --seeds 20000
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from headrace.errors import HeadraceError, QueueFullError, StorageError, UsageError
from headrace.ingest.contract import Epoch
from headrace.ingest.effects import (
    AnswerWaiters,
    Completion,
    CoordinatorEffect,
    FlushFailed,
    FlushSucceeded,
    PublishSnapshot,
    RefuseWrites,
    StartFlush,
    StartSync,
    StopThreads,
    SyncFailed,
    SyncSucceeded,
)
from headrace.ingest.state import CoordinatorPhase, CoordinatorState, View
from headrace.ingest.write_queue import RoomTicket, WriteQueue
from headrace.testing.ingest.ingest_kinds import FLUSH_KINDS, EpochWaiter, IngestKind
from headrace.testing.ingest.simulated_storage import (
    ROW_BYTES,
    RowDelta,
    Rows,
    SimulatedStorage,
    random_settings,
    rows_of_view,
)
from headrace.testing.seeds import Say, Simulation, main

STEPS = 150
_KEYS = 9
_VIEWS_KEPT = 5
_BATCH_MAX = 4


class IngestWorld:
    """One storage, and the coordinators that it has one after the other."""

    def __init__(self, seed: int, say: Say | None = None) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[StrEnum] = Counter()
        self._say = say
        self.storage = SimulatedStorage()
        self.now_s = 0.0
        chance = self.chance
        self.settings = random_settings(chance)
        self.is_calm = False
        """True if nothing fails any more."""
        self.failure_odds = chance.choice([0.0, 0.02, 0.1])
        self._values = 0
        self._open()

    def _open(self) -> None:
        """Start a coordinator on what the storage holds."""
        rows = self.storage.states[-1]
        self.queue = WriteQueue[RowDelta](self.settings, "store")
        self.state = CoordinatorState[RowDelta, Rows](RowDelta, rows, self.settings, "store")
        self.truth: list[Rows] = [rows]
        """What the store holds after each epoch."""
        self.published = Epoch(0)
        self.durable = Epoch(0)
        """The last epoch of which a waiter, or the state, said that it is durable."""
        self.waiters: list[EpochWaiter] = []
        self.line: list[RoomTicket] = []
        """Who waits for room; `granted` is what they want to write."""
        self.views: list[View[RowDelta, Rows]] = []
        self.flush: StartFlush[RowDelta, Rows] | None = None
        self.sync: StartSync | None = None
        self.boundaries = {0: self.storage.sequence}
        """The sequence of the flush that ended with an epoch."""
        self.is_stopped = False
        self.is_closing = False

    def note(self, kind: IngestKind, detail: object = "") -> None:
        self.counts[kind] += 1
        if self._say:
            self._say(f"{self.now_s:8.1f}  {kind.name.lower():18}  {detail}")

    # What happens

    def run(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.write, 30),
            (self.write_batch, 5),
            (self.stand_in_line, 2),
            (self.leave_line, 1),
            (self.ask, 8),
            (self.give_up, 1),
            (self.step, 12),
            (self.pass_time, 6),
            (self.end_flush, 14),
            (self.end_sync, 10),
            (self.view, 6),
            (self.crash, 1),
            (self.close, 1),
        ]
        functions, weights = zip(*actions, strict=True)
        for _ in range(steps):
            self.chance.choices(functions, weights)[0]()
            self.check()
            if self.state.failure is not None and self.chance.random() < 0.2:
                self.replace()
        self.complete()

    def write(self) -> None:
        delta = self.new_delta()
        self._write([delta], lambda: self.queue.add(delta), IngestKind.WRITTEN)

    def write_batch(self) -> None:
        deltas = [self.new_delta() for _ in range(self.chance.randint(2, _BATCH_MAX))]
        size = sum(delta.size_bytes for delta in deltas)
        self._write(deltas, lambda: self.queue.add_all(deltas, size), IngestKind.BATCH_WRITTEN)

    def _write(self, deltas: list[RowDelta], add: Callable[[], Epoch], taken: IngestKind) -> bool:
        rows, last = [dict(delta.rows) for delta in deltas], self.queue.last
        size = sum(delta.size_bytes for delta in deltas)
        held = self.queue.queued_bytes + self.queue.held_bytes
        try:
            epoch = add()
        except HeadraceError as error:
            assert [delta.rows for delta in deltas] == rows
            assert self.queue.last == last
            kind = self._refusal(error)
            self.note(kind, error)
            if kind is IngestKind.REFUSED and self.chance.random() < 0.3:
                self._stand_in_line(deltas, size)
            return False
        assert self.state.failure is None
        assert not self.is_closing
        assert epoch == last + len(deltas)
        if size > self.settings.pending_bytes_max:
            assert held == 0
            self.note(IngestKind.OVERSIZED)
        for each in rows:
            self.truth.append({**self.truth[-1], **each})
        self.note(taken, f"up to epoch {epoch}")
        return True

    def stand_in_line(self) -> None:
        """Wait for room with a write that found none a while ago."""
        delta = self.new_delta()
        self._stand_in_line([delta], delta.size_bytes)

    def _stand_in_line(self, deltas: list[RowDelta], size: int) -> None:
        ticket = RoomTicket(len(deltas), size, deltas)
        self.queue.wait_for_room(ticket)
        self.line.append(ticket)
        self.note(IngestKind.STOOD_IN_LINE, f"for {size} bytes")
        self.grant()

    def grant(self) -> None:
        """Let those write for whom there is room now. Each of them finds it."""
        while told := self.queue.grant():
            assert told == self.line[: len(told)], "in their order"
            for ticket in told:
                self.line.remove(ticket)
                is_over = self.state.failure is not None or self.is_closing
                has_written = self._write(
                    ticket.granted,
                    partial(self.queue.add_all, ticket.granted, ticket.size_bytes, ticket),
                    IngestKind.GOT_ROOM,
                )
                assert has_written or is_over
                self.queue.leave(ticket)

    def leave_line(self) -> None:
        if self.line:
            ticket = self.line.pop(self.chance.randrange(len(self.line)))
            self.queue.leave(ticket)
            self.note(IngestKind.LEFT_LINE)
            self.grant()

    def _refusal(self, error: HeadraceError) -> IngestKind:
        if isinstance(error, QueueFullError):
            return IngestKind.REFUSED
        failure = self.state.failure
        assert failure is not None or self.is_closing
        assert type(error) is (UsageError if failure is None else type(failure))
        return IngestKind.REFUSED_FOR_GOOD

    def new_delta(self) -> RowDelta:
        count = self.chance.choice([1, 1, 1, 2, 3, 7])
        self._values += 1
        return RowDelta({self.chance.randrange(_KEYS): self._values for _ in range(count)})

    def ask(self) -> None:
        """Wait for the last epoch, or for any."""
        last = self.queue.last
        waiter = EpochWaiter(Epoch(self.chance.choice([last, self.chance.randint(0, last)])))
        self.waiters.append(waiter)
        self.note(IngestKind.ASKED, f"epoch {waiter.epoch}")
        if waiter.epoch <= self.state.durable:
            self.note(IngestKind.ANSWERED_AT_ONCE)
        self.carry_out(self.state.wait_for(waiter.epoch, waiter))
        if self.chance.random() < 0.7:
            self.step()

    def give_up(self) -> None:
        if waiting := [each for each in self.waiters if each.is_waiting]:
            waiter = self.chance.choice(waiting)
            waiter.has_given_up = True
            self.state.forget(waiter.epoch, waiter)
            self.note(IngestKind.GAVE_UP, f"epoch {waiter.epoch}")

    def step(self, *completions: Completion) -> None:
        self.carry_out(self.state.step(self.now_s, self.queue.take(), completions))
        self.queue.held_bytes = self.state.held_bytes
        self.state.validate()
        self.grant()
        deadline_s = self.state.deadline_s
        assert deadline_s is None or deadline_s > self.now_s
        if self.state.phase is CoordinatorPhase.ACCUMULATING:
            assert not self.waiting

    def pass_time(self) -> None:
        self.now_s += self.chance.choice([0.1, 1.0, 3.0])
        self.step()

    def end_flush(self) -> None:
        if self.flush is None:
            return None
        (flush, self.flush), kind = (self.flush, None), self._how_it_ends()
        if kind == "fails":
            self.note(IngestKind.FLUSH_FAILED, flush.epochs)
            return self.step(FlushFailed(OSError(5, "Input/output error")))
        result = self.storage.apply(flush.delta)
        self.boundaries[flush.epochs.last] = result.sequence
        if kind == "is in doubt":
            self.note(IngestKind.FLUSH_IN_DOUBT, flush.epochs)
            return self.step(FlushFailed(StorageError("no answer", do="look again")))
        self.note(IngestKind.FLUSHED, flush.epochs)
        return self.step(FlushSucceeded(result, 0.1))

    def end_sync(self) -> None:
        if self.sync is None:
            return None
        sync, self.sync = self.sync, None
        if self._how_it_ends() != "succeeds":
            self.note(IngestKind.SYNC_FAILED, sync)
            return self.step(SyncFailed(OSError(28, "No space left on device")))
        is_shared = sync.sequence - self.storage.durable_sequence > 1
        self.note(IngestKind.SYNC_SHARED if is_shared else IngestKind.SYNCED, sync)
        self.storage.sync(sync.sequence)
        return self.step(SyncSucceeded(0.1))

    def _how_it_ends(self) -> str:
        if self.is_calm or self.chance.random() >= self.failure_odds:
            return "succeeds"
        return self.chance.choice(["fails", "is in doubt"])

    def view(self) -> None:
        """Read your writes: a view shows all that were taken."""
        last = self.queue.last
        self.step()
        if self.state.failure is not None:
            return
        view = self.state.view()
        assert view.epoch == last
        self.check_view(view)
        self.views = [*self.views[-_VIEWS_KEPT:], view]
        self.note(IngestKind.VIEWED, f"up to epoch {view.epoch}")

    def crash(self) -> None:
        """End the process at any moment: a flush may be stored whole, or not at all."""
        is_flushing = self.flush is not None
        self.note(IngestKind.CRASHED_IN_FLUSH if is_flushing else IngestKind.CRASHED)
        if self.flush is not None and self.chance.random() < 0.5:
            result = self.storage.apply(self.flush.delta)
            self.boundaries[self.flush.epochs.last] = result.sequence
        self._lose()

    def replace(self) -> None:
        """Open the store again after a failure."""
        self.check_all_were_told()
        self.note(IngestKind.REPLACED)
        self._lose()

    def _lose(self) -> None:
        self.storage.crash(self.chance.randrange(len(self.storage.states)))
        found = self.storage.sequence
        left = [epoch for epoch, sequence in self.boundaries.items() if sequence == found]
        if left:
            assert max(left) >= self.durable
            assert self.storage.states[-1] == self.truth[max(left)]
        else:
            assert self.durable == 0, "an acknowledged write is lost"
        self._open()

    def close(self) -> None:
        """Close, and go on with another coordinator."""
        self.is_closing = True
        self.carry_out(self.state.close())
        self.step()
        for _ in range(10):
            if self.is_stopped:
                break
            self.end_flush()
            self.end_sync()
        assert self.is_stopped
        self.check_all_were_told()
        if self.state.failure is not None:
            return self.replace()
        assert self.storage.durable_rows == self.truth[-1]
        self.note(IngestKind.CLOSED)
        return self._open()

    def complete(self) -> None:
        """With no more accidents, and nobody asking, all becomes durable by itself."""
        self.is_calm = True
        if self.state.failure is not None:
            self.replace()
        self.step()
        for _ in range(10 + len(self.line)):  # One of the line gets room in each.
            self.end_flush()
            self.end_sync()
            self.now_s += self.settings.flush_interval_s
            self.step()
        assert self.state.durable == self.queue.last
        assert self.storage.durable_rows == self.truth[-1]
        self.check_all_were_told()
        assert self.queue.held_bytes == 0
        largest = RowDelta(dict.fromkeys(range(self.settings.pending_bytes_max // ROW_BYTES), 0))
        assert self.queue.add(largest) == len(self.truth), "there is room again"

    # What the coordinator does

    def carry_out(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case StartFlush():
                    self._begin_flush(effect)
                case StartSync():
                    assert self.sync is None or self.state.failure is not None
                    assert effect.sequence == self.storage.sequence, "the newest flush"
                    self.sync = effect
                case PublishSnapshot(snapshot, epoch):
                    assert epoch > self.published
                    assert snapshot == self.truth[epoch]
                    self.published = epoch
                case AnswerWaiters(waiters, error):
                    for waiter in waiters:
                        self._answer(waiter, error)
                case RefuseWrites(error):
                    self.queue.refuse(error)
                    self.grant()
                case StopThreads():
                    assert not self.is_stopped
                    self.is_stopped = True

    def _begin_flush(self, flush: StartFlush[RowDelta, Rows]) -> None:
        assert self.flush is None, "one flush at a time"
        assert flush.epochs.start == self.published + 1
        assert flush.snapshot == self.truth[self.published]
        assert {**flush.snapshot, **flush.delta.rows} == self.truth[flush.epochs.last]
        self.flush = flush
        began = self.state.figures.by_trigger
        for trigger, kind in FLUSH_KINDS.items():
            self.counts[kind] += began.pop(trigger, 0)

    def _answer(self, waiter: EpochWaiter, error: HeadraceError | None) -> None:
        assert not waiter.is_answered
        assert not waiter.has_given_up
        waiter.is_answered = True
        if error is not None:
            assert error is self.state.failure
            self.note(IngestKind.TOLD_OF_FAILURE, f"epoch {waiter.epoch}: {error.what}")
            return
        self.durable = max(self.durable, waiter.epoch)
        self.note(IngestKind.ANSWERED, f"epoch {waiter.epoch}")
        self.check_durable(waiter.epoch)

    # What must hold

    @property
    def waiting(self) -> list[EpochWaiter]:
        """Whoever waits for a write that was merged."""
        flushed = self.state.flushed
        return [each for each in self.waiters if each.is_waiting and each.epoch > flushed]

    def check(self) -> None:
        self.check_limits()
        assert self.durable <= self.state.durable
        self.durable = self.state.durable
        self.check_durable(self.durable)
        if self.state.failure is not None:
            self.check_all_were_told()
        for view in self.views:
            self.check_view(view)

    def check_limits(self) -> None:
        """A write that is larger than all limits has them for itself."""
        queue, settings = self.queue, self.settings
        held = queue.queued_bytes + queue.held_bytes
        alone = queue.last - self.state.durable <= _BATCH_MAX
        assert held <= settings.pending_bytes_max or alone
        assert queue.depth <= max(settings.commands_max, _BATCH_MAX)
        assert not (self.line and held == 0), "there is room for the first in line"
        is_busy = self.flush or self.sync or self.state.phase is CoordinatorPhase.IDLE
        assert not self.line or is_busy or queue.is_short or queue.is_much, "it makes room unasked"

    def check_durable(self, epoch: Epoch) -> None:
        """The storage has that epoch where no crash takes it away."""
        stored = [end for end in self.boundaries if end >= epoch]
        assert epoch == 0 or min(self.boundaries[end] for end in stored) <= (
            self.storage.durable_sequence
        )

    def check_view(self, view: View[RowDelta, Rows]) -> None:
        """A view shows every write up to its epoch and none after it, also later."""
        assert view.snapshot == self.truth[view.flushed]
        assert rows_of_view(view) == self.truth[view.epoch]

    def check_all_were_told(self) -> None:
        assert not any(each.is_waiting for each in self.waiters)


def _run(seed: int, steps: int, say: Say | None) -> Counter[StrEnum]:
    world = IngestWorld(seed, say)
    world.run(steps)
    return world.counts


SIMULATION = Simulation(
    "headrace.testing.ingest.ingest_simulator", "a write coordinator", IngestKind, STEPS, _run
)


if __name__ == "__main__":
    # Other processes know this module by its name.
    from headrace.testing.ingest import ingest_simulator

    sys.exit(main(ingest_simulator.SIMULATION))
