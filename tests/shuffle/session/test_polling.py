"""Polls of checkpoints: with timeouts, from several threads, and with interruptions."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from headrace.errors import StorageError, UsageError
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.session.actor import _Failed, _Poll
from headrace.testing.crash import eventually
from tests.shuffle.real_task import POLL_S, SOON_S, Task


def until_settled(task: Task) -> None:
    eventually(lambda: task.shuffle.status().settled or None, SOON_S, "everything is reported")


# proves G13
def test_a_poll_without_patience_sees_what_is_there(task: Task) -> None:
    task.append(0, 5)
    task.open("a")
    eventually(lambda: task.shuffle.status().places == 2 or None, SOON_S, "reading")
    until_settled(task)
    checkpoint = task.shuffle.next_checkpoint(0)
    assert checkpoint is not None
    assert sum(len(batch) for m in (0, 1) for _, batch in task.shuffle.read(m, checkpoint)) == 5
    assert task.shuffle.next_checkpoint(0) is None


# proves G7
def test_an_interrupted_poll_loses_nothing(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a notebook, the next poll gets what became visible meanwhile."""
    task.open("a")

    def interrupt(self: Future[Checkpoint | None], timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            task.shuffle.next_checkpoint()
    task.append(0, 5)
    until_settled(task)
    assert sum(len(shown.documents) for shown in task.take(5)) == 5


# proves G5
def test_members_refuse_to_read_on_after_an_interruption_lost_a_checkpoint(task: Task) -> None:
    """A program that goes on after Ctrl-C gets an error, not the next checkpoint in its place."""

    class InterruptingLock:
        def acquire(self, *, blocking: bool) -> bool:
            return True

        def release(self) -> None:
            raise KeyboardInterrupt

    task.open("a")
    task.append(0, 5)
    asking = task.shuffle._asking
    task.shuffle._asking = InterruptingLock()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        task.shuffle.next_checkpoint()
    task.shuffle._asking = asking
    task.append(5, 5)
    later = task.shuffle.next_checkpoint()
    assert later is not None
    assert later.number == 2
    with pytest.raises(UsageError, match="checkpoint 2 cannot be read after checkpoint 0"):
        list(task.shuffle.read(0, later))


# proves G13
def test_a_poll_that_comes_as_the_session_ends_is_answered(task: Task) -> None:
    task.open("a")
    actor = task.shuffle._actor
    answer: Future[NextCheckpoint | None] = Future()
    with actor._lock:
        # It cannot say that it has ended before both are in its inbox.
        actor._inbox.put(_Failed(StorageError("the disk is gone", do="mend it")))
        actor._inbox.put(_Poll(answer, None, may_be_empty=False))
    with pytest.raises(StorageError, match="the disk is gone"):
        answer.result(SOON_S)


def test_the_state_decides_once_for_events_that_come_together(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision takes as long for many reports as for one."""
    task.open("a")
    actor = task.shuffle._actor
    decisions: list[int] = []
    may_go_on, is_waiting, has_ended = threading.Event(), threading.Event(), threading.Event()
    handle, advance = actor._handle, actor._advance

    def handle_or_wait(event: object) -> None:
        if event == "wait":
            is_waiting.set()
            may_go_on.wait(SOON_S)
        elif event == "end":
            has_ended.set()
        elif event != "report":
            handle(event)

    def advance_and_count() -> None:
        decisions.append(1)
        advance()

    monkeypatch.setattr(actor, "_handle", handle_or_wait)
    actor._inbox.put("report")
    monkeypatch.setattr(actor, "_advance", advance_and_count)
    actor._inbox.put("wait")
    assert is_waiting.wait(SOON_S)
    before = len(decisions)
    for event in ["report"] * 50 + ["end"]:
        actor._inbox.put(event)
    may_go_on.set()
    assert has_ended.wait(SOON_S)
    assert len(decisions) - before <= 1


# proves G13
def test_of_two_threads_that_poll_at_once_one_is_refused_and_the_other_answered(task: Task) -> None:
    task.open("a")
    found: Future[object] = Future()
    asking = threading.Thread(target=lambda: found.set_result(task.shuffle.next_checkpoint(POLL_S)))
    asking.start()
    eventually(lambda: task.shuffle._asking.locked() or None, SOON_S, "the other asks")
    with pytest.raises(UsageError, match="another thread waits for a checkpoint"):
        task.shuffle.next_checkpoint(0)
    with pytest.raises(UsageError, match="another poll is open already"):
        task.shuffle._actor.poll(None).result(POLL_S)
    task.append(0, 5)
    assert found.result(POLL_S) is not None
    asking.join()


# proves G13
def test_what_a_listener_cannot_take_ends_the_session(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.open("a")

    def broken() -> None:
        raise TypeError("nobody thought of this")

    monkeypatch.setattr(task.shuffle._actor._slices[0], "receive", broken)
    task.shuffle._actor.status()
    error = task.shuffle._actor.cause(SOON_S)
    assert error
    assert error.what == "member 0: TypeError: nobody thought of this"
