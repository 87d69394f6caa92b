"""What readers find in a Queue's file, and what of it is given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.frontier import place
from headrace.log import Directory
from headrace.settings import LogSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.block import block_bytes
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.queue import store
from headrace.shuffle.queue.checkpoint_reads import CheckpointReads
from headrace.shuffle.queue.store import QueueStore
from tests.shuffle.builders import block, frontier, head, source
from tests.shuffle.queue.scripted_queue import WAIT_S, Gate, GatedDisk

P = place(0, 0)


class Queue:
    """A Queue's file, and its readers, in one thread."""

    def __init__(self, root: Path) -> None:
        self.store = QueueStore(root, LogSettings())
        self.reading = CheckpointReads(self.store, Sources([source()]), lambda: None)

    def append(self, clock: int, producer: int, count: int = 1) -> int:
        """A block of documents from a clock on; what it counts for."""
        pair = P, producer, clock, clock + count - 1
        body = memoryview(block(pair).serialize())
        self.store.write_block(head(pair), body)
        return block_bytes(head(pair), body)

    def sync(self) -> None:
        done = threading.Event()
        self.store.sync(lambda error: None if error else done.set())
        assert done.wait(WAIT_S)

    def read(self, number: int, *commits: tuple[int, int]) -> int:
        """How many documents a checkpoint shows, with the commits of these producers."""
        checkpoint = Checkpoint(frontier(*((0, 0, *each) for each in commits)))
        self.reading.advance(number, checkpoint)
        found = [message.control for message in self.reading.read(number)]
        return sum(each.rows for each in found if isinstance(each, messages.Documents))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue")
    yield made
    made.reading.close()


# proves G12
@pytest.mark.parametrize("passed_over_first", [False, True])
def test_what_was_copied_is_given_back_where_it_was(queue: Queue, passed_over_first: bool) -> None:
    """Whether or not a reader passes over the copy before the Queue hears that it is durable."""
    size = queue.append(10, 1)
    queue.append(20, 2)
    queue.sync()
    assert queue.read(1, (2, 20)) == 1
    queue.reading.release(1)
    assert queue.reading.account() == (0, size, size, 0, 1, 1, 0)
    assert queue.reading.copy(1) == size
    queue.sync()
    if passed_over_first:
        assert queue.read(2) == 0
    account = queue.reading.copied()
    assert account[:4] == (2 * size, 0, size, 0)
    assert queue.read(account.read + 1, (1, 10)) == 1
    queue.reading.release(account.read + 1)
    assert queue.reading.account()[:4] == (3 * size, 0, 0, 0)


# proves G13
def test_a_block_is_not_given_back_while_it_is_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would then be written is damaged, and nobody could read on."""
    gate = Gate()
    monkeypatch.setattr(store, "Directory", lambda path: GatedDisk(Directory(path), gate))
    queue = Queue(tmp_path / "queue")
    queue.append(1, 1, 1000)
    queue.append(2000, 2)
    queue.sync()
    assert queue.read(1, (2, 2000)) == 1
    queue.reading.release(1)
    gate.shut()
    queue.append(3000, 2)
    assert gate.reached.wait(WAIT_S)
    assert queue.reading.copy(1), "to be written when the disk is free"
    assert queue.read(2, (1, 1000)) == 1000
    queue.reading.release(2)
    gate.open()
    queue.sync()
    queue.reading.copied()
    assert queue.read(3, (2, 3000)) == 1
    queue.reading.release(3)
    queue.reading.close()
