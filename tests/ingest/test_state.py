"""The coordinator's decisions, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from headrace.errors import (
    FencedError,
    HeadraceError,
    InDoubtError,
    QueueFullError,
    StorageError,
)
from headrace.ingest.contract import Epoch, FlushResult
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
from headrace.ingest.state import CoordinatorPhase, CoordinatorState
from headrace.ingest.write_queue import QueuedWrites
from headrace.settings import IngestSettings
from tests.ingest.memory_store import MapDelta, MapSnapshot, rows_of

SETTINGS = IngestSettings(pending_bytes_max=1000, flush_bytes=50, flush_interval_s=10)
SYNCED = SyncSucceeded(0.5)


class Steps:
    """A state that a test takes through its steps. Rows are named by their epochs."""

    def __init__(self, settings: IngestSettings = SETTINGS) -> None:
        self.state = CoordinatorState(MapDelta, MapSnapshot(), settings, "the store")
        self.last = 0
        self.now_s = 100.0

    def phase(self) -> CoordinatorPhase:
        return self.state.phase

    def step(
        self,
        *completions: Completion,
        writes: int = 0,
        at_s: float | None = None,
        is_short: bool = False,
    ) -> list[CoordinatorEffect]:
        self.now_s = self.now_s if at_s is None else at_s
        new = range(self.last + 1, self.last + writes + 1)
        self.last += writes
        deltas = [MapDelta({str(epoch): epoch}) for epoch in new]
        queued = QueuedWrites(deltas, Epoch(self.last), is_short)
        effects = self.state.step(self.now_s, queued, completions)
        self.state.validate()
        return effects

    def wait(self, epoch: int) -> Sequence[CoordinatorEffect]:
        return self.state.wait_for(Epoch(epoch), f"waiter of {epoch}")

    def flushed(self, *epochs: int, sequence: int = 1) -> FlushSucceeded[MapSnapshot]:
        rows = {str(epoch): epoch for epoch in epochs}
        return FlushSucceeded(FlushResult(MapSnapshot(rows), sequence), 0.25)


def kinds(effects: Sequence[CoordinatorEffect]) -> list[type[CoordinatorEffect]]:
    return [type(effect) for effect in effects]


def test_writes_wait_until_somebody_asks() -> None:
    steps = Steps()
    assert steps.phase() == CoordinatorPhase.IDLE
    assert steps.step(writes=3) == []
    assert steps.phase() == CoordinatorPhase.ACCUMULATING
    assert steps.wait(2) == []
    (start,) = steps.step()
    assert isinstance(start, StartFlush)
    assert start.delta.rows == {"1": 1, "2": 2, "3": 3}
    assert start.epochs == EpochRange(Epoch(1), Epoch(4))
    assert steps.phase() == CoordinatorPhase.FLUSHING
    assert steps.state.figures.by_trigger == {FlushTrigger.REQUEST: 1}


def test_a_flush_covers_a_write_that_is_still_in_the_queue() -> None:
    steps = Steps()
    assert steps.wait(1) == []
    assert kinds(steps.step(writes=1)) == [StartFlush]


def test_a_request_before_its_write_has_arrived_flushes_when_it_has() -> None:
    steps = Steps()
    steps.wait(1)
    assert steps.step() == []
    assert kinds(steps.step(writes=1)) == [StartFlush]


def test_the_snapshot_is_published_before_a_sync_and_waiters_hear_after_it() -> None:
    steps = Steps()
    steps.wait(1)
    steps.step(writes=1)
    published, sync = steps.step(steps.flushed(1, sequence=7))
    assert published == PublishSnapshot({"1": 1}, Epoch(1))
    assert sync == StartSync(7, Epoch(1))
    assert (steps.state.flushed, steps.state.durable) == (1, 0)
    assert steps.step(SYNCED) == [AnswerWaiters(("waiter of 1",), None)]
    assert steps.state.durable == 1
    assert steps.wait(1) == [AnswerWaiters(("waiter of 1",), None)]
    assert steps.phase() == CoordinatorPhase.IDLE


def test_waiters_are_answered_by_epoch() -> None:
    steps = Steps()
    for epoch in (2, 1, 2):
        steps.wait(epoch)
    steps.step(writes=1)
    steps.wait(3)
    assert kinds(steps.step(steps.flushed(1), writes=2)) == [PublishSnapshot, StartSync, StartFlush]
    assert steps.step(SYNCED) == [AnswerWaiters(("waiter of 1",), None)]
    steps.step(steps.flushed(1, 2, 3, sequence=2))
    (answer,) = steps.step(SYNCED)
    assert answer == AnswerWaiters(("waiter of 2", "waiter of 2", "waiter of 3"), None)
    assert steps.state.waiters == 0


def test_a_waiter_that_gave_up_is_not_answered() -> None:
    steps = Steps()
    steps.wait(1)
    steps.state.wait_for(Epoch(1), "another")
    steps.step(writes=1)
    steps.state.forget(Epoch(1), "waiter of 1")
    steps.state.forget(Epoch(1), "waiter of 1")
    steps.state.forget(Epoch(5), "waiter of 5")
    steps.step(steps.flushed(1))
    assert steps.step(SYNCED) == [AnswerWaiters(("another",), None)]


def test_one_flush_runs_at_a_time_and_one_sync_serves_several_flushes() -> None:
    steps = Steps()
    for epoch in range(1, 5):
        steps.wait(epoch)
        steps.step(writes=1)
    assert steps.state.view().flushed == 0
    started = steps.step(steps.flushed(1, sequence=1))
    assert kinds(started) == [PublishSnapshot, StartSync, StartFlush]
    assert isinstance(started[2], StartFlush)
    assert started[2].epochs == EpochRange(Epoch(2), Epoch(5))
    assert started[2].snapshot == {"1": 1}
    # Nobody waits for the second flush before the first wait is over.
    assert kinds(steps.step(steps.flushed(1, 2, 3, 4, sequence=2))) == [PublishSnapshot]
    answer, sync = steps.step(SYNCED)
    assert answer == AnswerWaiters(("waiter of 1",), None)
    assert sync == StartSync(2, Epoch(4))
    assert steps.state.durable == 1
    steps.step(SYNCED)
    assert steps.state.durable == 4
    assert steps.state.figures.syncs == 2
    assert steps.state.figures.sync_s == 1.0


def test_a_sync_covers_all_flushes_that_were_complete_when_it_began() -> None:
    steps = Steps()
    for epoch in (1, 2, 3):
        steps.wait(epoch)
        steps.step(writes=1)
        if epoch > 1:
            assert steps.phase() == CoordinatorPhase.FLUSHING
        steps.step(steps.flushed(*range(1, epoch + 1), sequence=epoch))
    # The first sync is still under way: the next one is for both that are complete.
    assert steps.state.durable == 0
    answer, sync = steps.step(SYNCED)
    assert sync == StartSync(3, Epoch(3))
    assert steps.state.frozen_bytes == 20
    (answer,) = steps.step(SYNCED)
    assert answer == AnswerWaiters(("waiter of 2", "waiter of 3"), None)
    assert steps.state.frozen_bytes == 0


def test_the_timer_flushes_what_has_waited_for_long_enough() -> None:
    steps = Steps()
    assert steps.state.deadline_s is None
    steps.step(writes=1, at_s=100)
    steps.step(writes=1, at_s=105)
    assert steps.state.deadline_s == 110
    assert steps.step(at_s=109.9) == []
    assert kinds(steps.step(at_s=110)) == [StartFlush]
    assert steps.state.deadline_s is None
    assert steps.state.figures.by_trigger == {FlushTrigger.TIMER: 1}
    # The time of the next flush begins with its own first write.
    steps.step(writes=1, at_s=111)
    steps.step(steps.flushed(1, 2), at_s=112)
    assert steps.state.deadline_s == 121


def test_the_timer_of_a_flush_that_ran_long_is_due_at_once() -> None:
    steps = Steps()
    steps.step(writes=1, at_s=100)
    steps.step(at_s=110)
    steps.step(writes=1, at_s=111)
    assert kinds(steps.step(steps.flushed(1), at_s=121)) == [PublishSnapshot, StartSync, StartFlush]


def test_the_size_flushes() -> None:
    steps = Steps()
    assert steps.step(writes=4) == []
    assert kinds(steps.step(writes=1)) == [StartFlush]
    assert steps.state.figures.by_trigger == {FlushTrigger.SIZE: 1}
    assert steps.state.frozen_bytes == 50
    assert steps.state.pending_bytes == 0


def test_a_write_that_found_no_room_has_the_rest_flushed() -> None:
    steps = Steps()
    steps.step(writes=1)
    assert kinds(steps.step(is_short=True)) == [StartFlush]
    steps.step(writes=1, is_short=True)
    # A flush runs already; when it is over, the next one makes room.
    assert kinds(steps.step(steps.flushed(1))) == [PublishSnapshot, StartSync, StartFlush]
    steps.step(steps.flushed(1, 2), SYNCED)
    # With nothing pending, a flush makes no room, and the next write is not flushed for that.
    steps.step(is_short=True)
    assert steps.step(writes=1) == []


def test_a_write_that_found_no_room_has_one_flush_begun() -> None:
    steps = Steps()
    assert kinds(steps.step(writes=1, is_short=True)) == [StartFlush]
    steps.step(writes=1)
    assert kinds(steps.step(steps.flushed(1))) == [PublishSnapshot, StartSync]


@pytest.mark.parametrize(
    ("is_asked", "is_late", "is_large", "trigger"),
    [
        (True, True, True, FlushTrigger.REQUEST),
        (False, True, True, FlushTrigger.TIMER),
        (False, False, True, FlushTrigger.SIZE),
        (False, False, False, None),
    ],
)
def test_commands_come_before_the_timer_and_the_timer_before_the_size(
    *, is_asked: bool, is_late: bool, is_large: bool, trigger: FlushTrigger | None
) -> None:
    steps = Steps()
    steps.step(writes=1)
    if is_asked:
        steps.wait(1)
    steps.step(writes=4 if is_large else 0, at_s=steps.now_s + 10 * is_late)
    assert steps.state.figures.by_trigger == ({trigger: 1} if trigger else {})


def test_a_completion_comes_before_commands() -> None:
    """What a flush made room for is merged in the same step, after its snapshot is published."""
    steps = Steps()
    steps.wait(1)
    steps.step(writes=1)
    steps.wait(2)
    effects = steps.step(steps.flushed(1), writes=1)
    assert kinds(effects) == [PublishSnapshot, StartSync, StartFlush]
    assert isinstance(effects[2], StartFlush)
    assert effects[2].epochs == EpochRange(Epoch(2), Epoch(3))


def test_a_view_has_every_write_once() -> None:
    steps = Steps()
    view = steps.state.view()
    assert (view.deltas, view.epoch) == ((), 0)
    steps.wait(1)
    steps.step(writes=1)
    steps.step(writes=1)
    view = steps.state.view()
    assert [delta.rows for delta in view.deltas] == [{"2": 2}, {"1": 1}]
    assert (view.snapshot, view.flushed, view.epoch) == ({}, 0, 2)
    steps.step(steps.flushed(1), writes=1)
    after = steps.state.view()
    assert rows_of(after.deltas) == {"2": 2, "3": 3}
    assert (after.snapshot, after.flushed, after.epoch) == ({"1": 1}, 1, 3)
    # What a reader holds does not change.
    assert rows_of(view.deltas) == {"1": 1, "2": 2}


def test_what_was_viewed_before_its_flush_began_is_shown_once() -> None:
    steps = Steps()
    steps.step(writes=1)
    steps.state.view()
    steps.wait(1)
    assert kinds(steps.step()) == [StartFlush]
    assert [delta.rows for delta in steps.state.view().deltas] == [{"1": 1}]


def test_a_copy_for_readers_is_made_once() -> None:
    steps = Steps()
    steps.step(writes=1)
    first = steps.state.view().pending
    assert steps.state.view().pending is first
    steps.step(writes=1)
    assert steps.state.view().pending is not first


@pytest.mark.parametrize("part", ["flush", "sync"])
def test_a_failure_reaches_all_waiters_and_nothing_is_done_after_it(part: str) -> None:
    steps = Steps()
    steps.wait(1)
    steps.step(writes=1)
    if part == "sync":
        steps.step(steps.flushed(1))
    steps.wait(2)
    steps.step(writes=1)
    error = OSError(5, "Input/output error")
    refused, answered = steps.step(FlushFailed(error) if part == "flush" else SyncFailed(error))
    assert isinstance(refused, RefuseWrites)
    assert isinstance(answered, AnswerWaiters)
    assert answered.waiters == ("waiter of 1", "waiter of 2")
    failure = answered.error
    assert isinstance(failure, StorageError)
    assert failure.__cause__ is error
    assert "the store: " in failure.what
    assert "Input/output error" in failure.what
    assert "epoch 0" in failure.do
    assert steps.phase() == CoordinatorPhase.FAILED
    assert steps.wait(3) == [AnswerWaiters(("waiter of 3",), failure)]
    assert steps.step(steps.flushed(1, 2), SYNCED, writes=1, at_s=1e9) == []
    assert steps.state.fail(error, "again") == []
    assert steps.state.figures.failures == 1
    assert (steps.state.frozen_bytes, steps.state.pending_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FencedError("another process writes", do="stop"), FencedError),
        (OSError(28, "No space left on device"), StorageError),
        (ZeroDivisionError("division by zero"), HeadraceError),
        (QueueFullError("a full queue below", do="write the same again"), StorageError),
        (InDoubtError("a lost answer", do="go on waiting"), StorageError),
    ],
)
def test_a_failure_keeps_its_kind_and_cause(error: Exception, kind: type[HeadraceError]) -> None:
    steps = Steps()
    steps.state.fail(error, "a flush failed")
    failure = steps.state.failure
    assert type(failure) is kind
    assert failure.__cause__ is error
    assert str(failure).startswith("the store: a flush failed: ")
    assert "\n" not in str(failure)
    is_final = not isinstance(error, QueueFullError | InDoubtError)
    assert is_final or failure.do.startswith("open the store again"), "nobody tries again"


def test_a_merge_that_fails_ends_the_coordinator_and_nothing_of_it_is_flushed() -> None:
    steps = Steps()
    steps.wait(1)
    broken = cast(MapDelta, None)
    effects = steps.state.step(0.0, QueuedWrites([MapDelta({"1": 1}), broken], Epoch(2)))
    assert kinds(effects) == [RefuseWrites, AnswerWaiters]
    assert steps.state.merged == 0


def test_a_delta_that_cannot_be_made_ends_the_coordinator_and_all_waiters_hear_of_it() -> None:
    """The step brings a sync, too: whoever waited for that is told that it succeeded."""
    steps = Steps()
    steps.wait(1)
    steps.step(writes=1)
    steps.step(steps.flushed(1))
    steps.wait(2)

    def no_delta() -> MapDelta:
        raise MemoryError

    steps.state._new_delta = no_delta
    durable, refused, failed = steps.step(SYNCED, writes=1)
    assert durable == AnswerWaiters(("waiter of 1",), None)
    assert isinstance(refused, RefuseWrites)
    assert "a flush could not begin: MemoryError" in str(refused.error)
    assert failed == AnswerWaiters(("waiter of 2",), refused.error)


def test_closing_flushes_the_rest_and_stops_when_it_is_durable() -> None:
    steps = Steps()
    steps.step(writes=1)
    assert kinds(steps.state.close()) == [RefuseWrites]
    assert kinds(steps.step(writes=1)) == [StartFlush]
    assert kinds(steps.step(steps.flushed(1, 2))) == [PublishSnapshot, StartSync]
    assert steps.phase() == CoordinatorPhase.IDLE
    assert kinds(steps.step(SYNCED)) == [StopThreads]
    assert steps.phase() == CoordinatorPhase.STOPPED
    assert steps.step() == []


def test_a_coordinator_that_failed_stops_when_it_is_closed() -> None:
    steps = Steps()
    steps.state.fail(OSError(5, "broken"), "a flush failed")
    assert steps.state.close() == []
    assert kinds(steps.step()) == [StopThreads]
    assert steps.phase() == CoordinatorPhase.FAILED


def test_the_oldest_write_that_is_not_durable_is_known() -> None:
    steps = Steps()
    assert steps.state.oldest_s is None
    steps.wait(1)
    steps.step(writes=1, at_s=101)
    assert steps.state.oldest_s == 101
    steps.step(writes=1, at_s=102)
    steps.step(steps.flushed(1), at_s=103)
    assert steps.state.oldest_s == 101
    steps.wait(2)
    steps.step()
    steps.step(steps.flushed(1, 2))
    assert steps.state.oldest_s == 101
    steps.step(SYNCED)
    assert steps.state.oldest_s == 102
    assert steps.state.figures.flush_s == 0.5
    assert steps.state.figures.bytes == 20
