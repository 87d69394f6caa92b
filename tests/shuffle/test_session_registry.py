"""Sessions that are announced in their workspace while others look for them."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from headrace.files import lock, write_durably
from headrace.shuffle import session_registry
from tests.shuffle.real_task import Task


def test_whoever_looks_while_a_session_is_announced_does_not_end_it(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking: list[threading.Timer] = []

    def write_and_look(path: Path, data: bytes) -> None:
        write_durably(path, data)
        looking.append(threading.Timer(0.1, os.close, [lock(path, fcntl.LOCK_SH)]))
        looking[0].start()

    monkeypatch.setattr(session_registry, "write_durably", write_and_look)
    task.open("a")
    looking[0].join()
    assert task.workspace.directory
    [found] = session_registry.running_sessions(task.workspace.directory)
    assert found.session == task.shuffle.session
    assert not found.unreachable
