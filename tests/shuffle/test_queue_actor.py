"""A Queue as Slices and readers meet it: on a disk, with its threads, behind its service."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.frontier import place
from headrace.log import Directory, Log
from headrace.log.group import tell
from headrace.settings import ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.queue import store
from headrace.testing.power import RecordedDisk
from tests.shuffle.queues import WAIT_S, Gate, GatedDisk, ScriptedQueue

P = place(0, 0)


def commit(clock: int, producer: int = 1) -> tuple[int, int, int, int]:
    return 0, 0, producer, clock


# proves G7
def test_flushed_is_said_after_the_sync_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(store, "Directory", lambda path: GatedDisk(Directory(path), gate))
    with ScriptedQueue(tmp_path) as queue:
        gate.shut()
        queue.append((P, 1, 1, 10))
        queue.slices[0].send(messages.Flush(1))
        assert gate.reached.wait(WAIT_S)
        assert isinstance(queue.said(), messages.Grant)
        queue.append((P, 1, 11, 20))
        assert isinstance(queue.said(), messages.Grant), "it takes more while the disk is busy"
        gate.open()
        assert queue.said() == messages.Flushed(1)


# proves G7
@pytest.mark.parametrize("sync", [True, False])
def test_what_was_flushed_survives_a_power_failure_unless_a_setting_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    disks: list[RecordedDisk] = []

    def recorded(path: Path) -> RecordedDisk:
        path.mkdir(parents=True)
        disks.append(RecordedDisk())
        return disks[0]

    monkeypatch.setattr(store, "Directory", recorded)
    with ScriptedQueue(tmp_path, settings=ShuffleSettings(sync=sync)) as queue:
        queue.append((P, 1, 1, 10))
        queue.flush()
        (disk,) = disks
        point = disk.point
    left = [blocks_of(RecordedDisk(files)) for files in disk.after_power_failure(point)]
    assert max(left) == 1
    assert min(left) == (1 if sync else 0)


def blocks_of(disk: RecordedDisk) -> int:
    """How many payloads are found there."""
    log = Log(disk)
    try:
        return len(list(log.scan()))
    finally:
        log.close()


# proves G5, G7
def test_what_was_flushed_is_found_though_the_log_has_yet_to_say_that_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log calls back before it moves its end; a checkpoint can be read in between."""
    read = threading.Event()
    wait = Log.wait

    def told(*args: object) -> None:
        tell(*args)  # type: ignore[arg-type]
        assert read.wait(WAIT_S)

    def waited(log: Log, offset: int) -> None:
        read.set()
        wait(log, offset)

    monkeypatch.setattr(Log, "wait", waited)
    with ScriptedQueue(tmp_path) as queue:
        queue.append((P, 1, 1, 10))
        with monkeypatch.context() as patch:
            patch.setattr("headrace.log.log.tell", told)
            queue.flush()
            try:
                assert queue.read(1, commit(10)) == list(range(1, 11))
            finally:
                read.set()
