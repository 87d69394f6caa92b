"""Readers find what they need in a Queue's file, and the Queue gives back the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.frontier import place
from headrace.log import Directory
from headrace.settings import LogSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import INFINITE, Sources
from headrace.shuffle.block import block_bytes
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.queue import store
from headrace.shuffle.queue.checkpoint_reads import CheckpointReads
from headrace.shuffle.queue.state import (
    Effect,
    GiveBack,
    QueueState,
    WriteBlock,
)
from headrace.shuffle.queue.store import QueueStore
from tests.shuffle.builders import block, frontier, head, source
from tests.shuffle.queue.scripted_queue import WAIT_S, Gate, GatedDisk

P = place(0, 0)


class FileWithReaders:
    """A Queue's file and its readers, in one thread. It copies blocks only when told to."""

    def __init__(self, root: Path) -> None:
        self.store = QueueStore(root, LogSettings())
        self.state = QueueState(1, 1, 1 << 40, 1 << 41)
        self.state.bound(0, [INFINITE])
        self.space = self.state.space
        self.reading = CheckpointReads(
            self.store, Sources([source()]), self.state, threading.Lock(), self.carry_out
        )

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case WriteBlock(_, head, body):
                    self.store.write_block(head, body)
                case GiveBack(below):
                    self.store.release_before(below)
        self.space.validate()

    def append(self, clock: int, producer: int, count: int = 1) -> int:
        """Append a block of documents from `clock` on, and return its bytes."""
        pair = P, producer, clock, clock + count - 1
        body = memoryview(block(pair).serialize())
        self.carry_out(self.state.append(0, head(pair), body))
        return block_bytes(head(pair), body)

    def copy_first_block(self) -> None:
        locations = self.space.start_copies(1)
        copies = {position: self.store.copy(old) for position, old in locations.items()}
        self.space.copies_written(copies)

    def sync(self) -> None:
        assert self.begin_sync().wait(WAIT_S)

    def begin_sync(self) -> threading.Event:
        """Return what is set once everything that was appended is durable."""
        done = threading.Event()
        self.store.sync(lambda error: None if error else done.set())
        return done

    def read(self, number: int, *commits: tuple[int, int]) -> int:
        """Return how many documents a checkpoint with these commits of producers shows."""
        checkpoint = Checkpoint(frontier(*((0, 0, *each) for each in commits)))
        self.reading.advance(number, checkpoint)
        found = [message.control for message in self.reading.read(number)]
        return sum(each.rows for each in found if isinstance(each, messages.Documents))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FileWithReaders]:
    file = FileWithReaders(tmp_path / "queue")
    yield file
    file.reading.close()


def file_behind(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileWithReaders:
    monkeypatch.setattr(store, "Directory", lambda path: GatedDisk(Directory(path), gate))
    return FileWithReaders(tmp_path / "queue")


# proves G12
@pytest.mark.parametrize("scanned_first", [False, True])
def test_what_was_copied_is_given_back_where_it_was(
    file: FileWithReaders, scanned_first: bool
) -> None:
    """A reader may scan the copy before the Queue hears that it is durable, or after."""
    size = file.append(10, 1)
    file.append(20, 2)
    file.sync()
    assert file.read(1, (2, 20)) == 1
    file.reading.release(1)
    assert (file.space.held_bytes, file.space.unneeded_bytes) == (2 * size, size)
    file.copy_first_block()
    assert file.space.held_bytes == 3 * size
    file.sync()
    if scanned_first:
        assert file.read(2) == 0
    file.carry_out(file.state.copies_durable())
    assert (file.space.held_bytes, file.space.unneeded_bytes) == (size, 0)
    number = file.space.last_read + 1
    assert file.read(number, (1, 10)) == 1
    file.reading.release(number)
    assert file.space.held_bytes == 0


def test_a_block_is_shown_only_once_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    file = file_behind(gate, tmp_path, monkeypatch)
    file.append(10, 1)
    file.sync()
    gate.shut()
    file.append(20, 2)
    synced = file.begin_sync()
    assert gate.reached.wait(WAIT_S)
    assert file.read(1, (1, 10), (2, 20)) == 1
    gate.open()
    assert synced.wait(WAIT_S)
    assert file.read(2, (2, 20)) == 1
    file.reading.close()


def test_a_checkpoint_that_is_released_cannot_be_read(file: FileWithReaders) -> None:
    file.append(10, 1)
    file.sync()
    assert file.read(1, (1, 10)) == 1
    file.reading.release(1)
    with pytest.raises(UsageError, match="checkpoint 1 cannot be read: it was released"):
        list(file.reading.read(1))


# proves G13
def test_a_block_is_not_given_back_while_it_is_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the Queue would write a damaged copy, and nobody could read on."""
    gate = Gate()
    file = file_behind(gate, tmp_path, monkeypatch)
    file.append(1, 1, 1000)
    file.append(2000, 2)
    file.sync()
    assert file.read(1, (2, 2000)) == 1
    file.reading.release(1)
    gate.shut()
    file.append(3000, 2)
    file.begin_sync()
    assert gate.reached.wait(WAIT_S)
    file.copy_first_block()
    assert file.read(2, (1, 1000)) == 1000
    file.reading.release(2)
    gate.open()
    file.sync()
    file.carry_out(file.state.copies_durable())
    assert file.read(3, (2, 3000)) == 1
    file.reading.release(3)
    file.reading.close()
