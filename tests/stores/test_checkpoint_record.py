"""Which checkpoints a store takes, from whom, and one at a time for each task."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import FencedError, StorageError, UsageError
from headrace.stores.checkpoint_record import (
    CheckpointRecord,
    StoreCheckpoint,
    advance,
    checkpoint_key,
    take_over,
)
from headrace.stores.task_checkpoints import TaskCheckpoints

FIRST = StoreCheckpoint("task", "g", 1)


class Records:
    """What a store holds under its keys, and how often it was written."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.writes = 0
        self.tasks = TaskCheckpoints(self.stored.get)

    def write(self, records: dict[bytes, bytes]) -> None:
        self.writes += 1
        self.stored.update(records)

    def opened_again(self) -> Records:
        again = Records()
        again.stored.update(self.stored)
        return again


def never(records: dict[bytes, bytes]) -> None:
    raise AssertionError("nothing was to be written")


def test_a_store_that_is_opened_again_knows_its_checkpoints() -> None:
    records = Records()
    assert records.tasks.take("task", "g", records.write) == 0
    assert records.tasks.apply(FIRST, records.write)
    again = records.opened_again()
    assert again.tasks.take("task", "g", never) == 1
    assert not again.tasks.apply(FIRST, never)


def test_every_generation_that_was_replaced_stays_refused() -> None:
    records = Records()
    for generation in "abc":
        records.tasks.take("task", generation, records.write)
    records.tasks.apply(StoreCheckpoint("task", "c", 1), records.write)
    for tasks in (records.tasks, records.opened_again().tasks):
        for over in "ab":
            with pytest.raises(FencedError, match="was replaced by c"):
                tasks.take("task", over, never)
            with pytest.raises(FencedError, match="was replaced by c"):
                tasks.apply(StoreCheckpoint("task", over, 1), never)


def test_a_generation_that_takes_its_task_again_writes_nothing() -> None:
    records = Records()
    for _ in range(2):
        records.tasks.take("task", "g", records.write)
    assert records.writes == 1


@pytest.mark.parametrize("number", [-1, 0, 3, 4])
def test_a_checkpoint_that_does_not_follow_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match="does not follow 1"):
        advance(CheckpointRecord("g", 1), StoreCheckpoint("task", "g", number))


@pytest.mark.parametrize("record", [None, CheckpointRecord("other")])
def test_nobody_writes_a_task_that_they_did_not_take(record: CheckpointRecord | None) -> None:
    with pytest.raises(UsageError, match="nobody took for its generation"):
        advance(record, FIRST)


def test_a_generation_that_takes_a_task_over_begins_from_one() -> None:
    taken = take_over(CheckpointRecord("g", 7, ("f",)), "task", "h")
    assert taken == CheckpointRecord("h", 0, ("f", "g"))


def test_a_write_that_fails_leaves_the_task_as_it_was() -> None:
    records = Records()
    records.tasks.take("task", "g", records.write)

    def fail(_: dict[bytes, bytes]) -> None:
        raise StorageError("the disk is full", do="free some space")

    for _ in range(2):
        with pytest.raises(StorageError):
            records.tasks.apply(FIRST, fail)
    with pytest.raises(StorageError):
        records.tasks.take("task", "h", fail)
    assert records.tasks.apply(FIRST, records.write)


def test_one_writes_for_a_task_at_a_time_and_other_tasks_do_not_wait() -> None:
    records = Records()
    for task in ("task", "other"):
        records.tasks.take(task, "g", records.write)
    is_writing, may_end = threading.Event(), threading.Event()

    def slowly(written: dict[bytes, bytes]) -> None:
        is_writing.set()
        assert may_end.wait(60)
        records.write(written)

    with ThreadPoolExecutor(3) as threads:
        try:
            first = threads.submit(records.tasks.apply, FIRST, slowly)
            assert is_writing.wait(60)
            again = threads.submit(records.tasks.apply, FIRST, never)
            taken = threads.submit(records.tasks.take, "task", "h", records.write)
            assert records.tasks.apply(StoreCheckpoint("other", "g", 1), records.write)
            assert not again.done()
            assert not taken.done()
        finally:
            may_end.set()
        assert first.result()
        assert taken.result() == 0
        if (error := again.exception()) is None:
            assert not again.result()
        else:  # The other generation was there first.
            assert isinstance(error, FencedError)
    assert records.opened_again().tasks.take("task", "h", never) == 0


def test_a_name_that_no_key_holds_is_refused_before_anything_is_written() -> None:
    assert len(checkpoint_key("é" * 239)) == 480
    tasks = Records().tasks
    with pytest.raises(UsageError, match="has 479 bytes; use a name of at most 478 bytes"):
        tasks.take("é" * 239 + "x", "g", never)
    with pytest.raises(UsageError, match="has 479 bytes"):
        tasks.apply(StoreCheckpoint("x" * 479, "g", 1), never)
