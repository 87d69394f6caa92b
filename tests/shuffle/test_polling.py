"""Asking for checkpoints: in time, once at a time, and with interruptions."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from headrace.errors import UsageError
from headrace.shuffle.checkpoint import Checkpoint
from headrace.testing.crash import eventually
from tests.shuffle.running import POLL_S, SOON_S, Task


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
    """Ctrl-C in a notebook; what becomes visible meanwhile is for the next who asks."""
    task.open("a")

    def interrupted(self: Future[Checkpoint | None], timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.shuffle.next_checkpoint()
    task.append(0, 5)
    until_settled(task)
    assert sum(len(shown.documents) for shown in task.take(5)) == 5


# proves G13
def test_of_two_who_ask_at_once_one_is_refused_and_the_other_answered(task: Task) -> None:
    task.open("a")
    found: Future[object] = Future()
    asking = threading.Thread(target=lambda: found.set_result(task.shuffle.next_checkpoint(POLL_S)))
    asking.start()
    eventually(lambda: task.shuffle._asking.locked() or None, SOON_S, "the other asks")
    with pytest.raises(UsageError, match="asked for already"):
        task.shuffle.next_checkpoint(0)
    with pytest.raises(UsageError, match="asked for already"):
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
