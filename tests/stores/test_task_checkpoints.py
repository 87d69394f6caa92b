"""The tasks of one store, and what is known of them after a write that was interrupted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import FencedError
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.task_checkpoints import TaskCheckpoints


class Stored:
    """What a store holds. A write may be interrupted when it has been taken."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.writes = 0

    def write(self, records: dict[bytes, bytes]) -> None:
        self.records |= records
        self.writes += 1

    def write_interrupted(self, records: dict[bytes, bytes]) -> None:
        self.write(records)
        raise KeyboardInterrupt


# proves G14
def test_a_checkpoint_whose_write_was_interrupted_is_applied_once() -> None:
    stored = Stored()
    tasks = TaskCheckpoints(stored.records.get)
    assert tasks.take("task", "g", stored.write) == 0
    with pytest.raises(KeyboardInterrupt):
        tasks.apply(StoreCheckpoint("task", "g", 1), stored.write_interrupted)
    assert not tasks.apply(StoreCheckpoint("task", "g", 1), stored.write)
    assert stored.writes == 2


# proves G14
def test_a_generation_is_refused_although_the_next_was_interrupted() -> None:
    stored = Stored()
    tasks = TaskCheckpoints(stored.records.get)
    tasks.take("task", "g", stored.write)
    with pytest.raises(KeyboardInterrupt):
        tasks.take("task", "h", stored.write_interrupted)
    with pytest.raises(FencedError):
        tasks.apply(StoreCheckpoint("task", "g", 1), stored.write)


# proves G14
def test_of_two_threads_with_one_checkpoint_one_applies_it() -> None:
    stored, is_writing, may_end = Stored(), threading.Event(), threading.Event()

    def write_slowly(records: dict[bytes, bytes]) -> None:
        is_writing.set()
        may_end.wait(0.2)
        stored.write(records)

    tasks = TaskCheckpoints(stored.records.get)
    tasks.take("task", "g", stored.write)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(tasks.apply, StoreCheckpoint("task", "g", 1), write_slowly)
        is_writing.wait()
        second = threads.submit(tasks.apply, StoreCheckpoint("task", "g", 1), stored.write)
        assert (first.result(), second.result()) == (True, False)


# proves G14
def test_a_generation_takes_a_task_only_from_the_one_that_it_saw() -> None:
    stored = Stored()
    tasks = TaskCheckpoints(stored.records.get)
    assert tasks.generation("task") == ""
    tasks.take("task", "g", stored.write, "")
    assert tasks.generation("task") == "g"
    with pytest.raises(FencedError, match="generation g of task 'task' has the store"):
        tasks.take("task", "old", stored.write, "")
    assert tasks.take("task", "g", stored.write, "") == 0
    assert tasks.take("task", "h", stored.write, "g") == 0
    assert stored.writes == 2
    with pytest.raises(FencedError, match="was replaced by h"):
        tasks.take("task", "g", stored.write, "h")
