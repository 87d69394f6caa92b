"""A Queue on a disk, with its threads, as its service shows it to Slices and readers."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import HeadraceError, PeerLostError, ProtocolError, StorageError
from headrace.frontier import place
from headrace.log import Directory, Log
from headrace.log.sync_group import call_all
from headrace.settings import KIB, LogSettings, ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.queue import store
from headrace.shuffle.queue.handler import Queues
from headrace.testing.crash import eventually
from headrace.testing.power import RecordedDisk
from tests.log.faulty_disk import Faults, FaultyDisk
from tests.shuffle.queue.scripted_queue import SESSION, WAIT_S, Gate, GatedDisk, ScriptedQueue

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
        queue.slices[0].send(messages.Flush(1, 0))
        assert gate.reached.wait(WAIT_S)
        assert isinstance(queue.receive(), messages.Grant)
        queue.append((P, 1, 11, 20))
        assert isinstance(queue.receive(), messages.Grant), "it takes more while the disk is busy"
        gate.open()
        assert queue.receive() == messages.Flushed(1)


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
    """Return how many payloads the log on the disk has."""
    log = Log(disk)
    try:
        return len(list(log.scan()))
    finally:
        log.close()


# proves G5, G7
def test_what_was_flushed_is_found_though_the_log_has_yet_to_say_that_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log calls back before it moves its end. A consumer may read a checkpoint in between."""
    read = threading.Event()
    wait = Log.wait

    def call_and_wait(*args: object) -> None:
        call_all(*args)  # type: ignore[arg-type]
        assert read.wait(WAIT_S)

    def note_and_wait(log: Log, offset: int) -> None:
        read.set()
        wait(log, offset)

    monkeypatch.setattr(Log, "wait", note_and_wait)
    with ScriptedQueue(tmp_path) as queue:
        queue.append((P, 1, 1, 10))
        with monkeypatch.context() as patch:
            patch.setattr("headrace.log.log.call_all", call_and_wait)
            queue.flush()
            try:
                assert queue.read(1, commit(10)) == list(range(1, 11))
            finally:
                read.set()


SMALL = ShuffleSettings(queue_soft_bytes=32 * KIB, queue_hard_bytes=512 * KIB)
DOCUMENTS = 500
"""The number of documents in a block. They have about 14 KiB."""


def held_bytes(queue: ScriptedQueue) -> int:
    return queue.actor.status()[0]


def block(queue: ScriptedQueue, number: int, producer: int = 1) -> list[int]:
    """Append a block and return the clocks of its documents."""
    first = number * DOCUMENTS + 1
    queue.append((P, producer, first, first + DOCUMENTS - 1))
    return list(range(first, first + DOCUMENTS))


# proves G10
def test_a_block_is_read_where_it_was_until_its_copy_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(store, "Directory", lambda path: GatedDisk(Directory(path), gate))
    with ScriptedQueue(tmp_path, settings=SMALL) as queue:
        kept = block(queue, 0)
        queue.flush()
        size = held_bytes(queue)
        shown = block(queue, 1, producer=2) + block(queue, 2, producer=2)
        queue.flush()
        gate.shut()
        assert queue.read(1, commit(shown[-1], 2)) == shown
        queue.consumer.release(1).result(WAIT_S)
        eventually(lambda: held_bytes(queue) == 4 * size, WAIT_S, "a copy of the open block")
        assert queue.read(2, commit(kept[-1])) == kept
        gate.open()
        queue.flush()
        assert queue.read(2, commit(kept[-1])) == kept
        queue.consumer.release(2).result(WAIT_S)
        eventually(lambda: held_bytes(queue) == size, WAIT_S, "only the copy is left")
        assert queue.read(3) == []
        queue.consumer.release(3).result(WAIT_S)
        eventually(lambda: held_bytes(queue) == 0, WAIT_S, "everything is given back")


# proves G10, G12
@pytest.mark.long
def test_checkpoints_can_be_read_again_while_blocks_before_and_in_them_move(tmp_path: Path) -> None:
    """The consumer reads two checkpoints ahead before it releases one. One producer stays open."""
    with ScriptedQueue(tmp_path, settings=SMALL) as queue:
        size = 0
        kept = block(queue, 0)
        plans: dict[int, tuple[int, list[int]]] = {}
        for number in range(1, 40):
            shown = block(queue, number, producer=2)
            queue.flush()
            size = size or held_bytes(queue) // 2
            plans[number] = shown[-1], shown
            for each in range(max(1, number - 1), number + 1):
                last, expected = plans[each]
                assert queue.read(each, commit(last, 2)) == expected
            if number > 2:
                queue.consumer.release(number - 2).result(WAIT_S)
            assert held_bytes(queue) < SMALL.queue_hard_bytes / 2
        assert queue.read(40, commit(kept[-1])) == kept
        assert queue.read(40, commit(kept[-1])) == kept
        queue.consumer.release(40).result(WAIT_S)
        assert queue.read(41) == []
        queue.consumer.release(41).result(WAIT_S)
        eventually(lambda: held_bytes(queue) == 0, WAIT_S, "everything is given back")


class WatchedDict(dict[tuple[int, int], int]):
    """Notes whether the lock was held when somebody read or changed it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.used: set[tuple[str, bool]] = set()

    def items(self) -> Any:
        self.used.add(("read", self.lock.locked()))
        return super().items()

    def __setitem__(self, key: tuple[int, int], value: int) -> None:
        self.used.add(("changed", self.lock.locked()))
        super().__setitem__(key, value)


# proves G13
def test_a_queue_is_not_asked_how_it_stands_while_that_changes(tmp_path: Path) -> None:
    """The thread that asks is not the one that works."""
    with ScriptedQueue(tmp_path, settings=ShuffleSettings(queue_soft_bytes=1)) as queue:
        watched = queue.actor._state._pinned._bytes = WatchedDict(queue.actor._deciding)
        block(queue, 0)
        queue.flush()
        held, reason = queue.actor.status()
        assert held
        assert "pinned by producer" in reason
        assert watched.used == {("changed", True), ("read", True)}


# proves G13
def test_a_queue_that_is_opened_as_that_of_another_member_refuses(tmp_path: Path) -> None:
    """A Session that names one member twice would mix up two ranges."""
    with ScriptedQueue(tmp_path, slices=2) as queue:
        channel = queue.client.converse(messages.QUEUE, msgspec.msgpack.Decoder())
        channel.send(messages.OpenQueue(SESSION, 1, 0, 2, (), ShuffleSettings()))
        with pytest.raises(ProtocolError, match="name each member of a Session once"):
            channel.receive(WAIT_S)


# proves G13
def test_a_release_that_meets_the_end_of_the_session_says_so_and_blames_no_disk(
    tmp_path: Path,
) -> None:
    with ScriptedQueue(tmp_path) as queue:
        queue.append((P, 1, 1, 10))
        queue.flush()
        assert queue.read(1, commit(10)) == list(range(1, 11))
        actor = queue.actor
        actor.close()
        with pytest.raises(PeerLostError, match="the Session has ended"):
            actor.release(1)


# proves G13
def test_a_session_that_ended_gets_no_queue_from_a_slice_that_comes_late(tmp_path: Path) -> None:
    """Nobody would end such a Queue."""
    queues = Queues(tmp_path, LogSettings())
    opening = messages.OpenQueue(SESSION, 0, 0, 2, (), ShuffleSettings())
    try:
        queues.end(SESSION)
        with pytest.raises(PeerLostError, match="the Session has ended; open another Session"):
            queues.open(opening)
        assert list(tmp_path.iterdir()) == []
    finally:
        queues.close()


# proves G12
def test_a_full_disk_that_cannot_even_be_cut_leaves_nothing_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file ends with its Session, so the error is one of storage only."""
    disk = Faults(10**6, forever=True, code=errno.ENOSPC)
    monkeypatch.setattr(store, "Directory", lambda path: FaultyDisk(Directory(path), disk))
    gate = threading.Event()
    results: list[HeadraceError | None] = []

    def note(error: HeadraceError | None) -> None:
        results.append(error)
        gate.set()

    queue = store.QueueStore(tmp_path / "queue", LogSettings())
    queue.write_retraction(())
    queue.sync(note)
    assert gate.wait(WAIT_S)
    gate.clear()
    # The write succeeds. Its sync fails, and so does cutting it off.
    disk.first = disk.calls + 1
    queue.write_retraction(())
    queue.sync(note)
    assert gate.wait(WAIT_S)
    queue.close()
    assert results[0] is None
    assert type(results[1]) is StorageError
    assert "could not be cut" in results[1].what
