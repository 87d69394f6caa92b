"""The file of a Queue is synced for Flushes, and not for each block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from headrace.frontier import place
from headrace.log import AppendFile, Directory
from headrace.settings import KIB, MIB, LogSettings
from headrace.shuffle.queue import store
from headrace.shuffle.queue.store import QueueStore
from headrace.testing.crash import eventually
from tests.shuffle.builders import head
from tests.shuffle.queue.scripted_queue import WAIT_S

BLOCK = head((place(0, 0), 1, 10, 10))


class CountedFile:
    """Notes the bytes of each write."""

    def __init__(self, file: AppendFile, written_bytes: list[int]) -> None:
        self._file = file
        self._written_bytes = written_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._written_bytes.append(sum(len(part) for part in parts))
        self._file.write(parts)


class CountingDirectory(Directory):
    def __init__(self, path: Path, written_bytes: list[int]) -> None:
        super().__init__(path)
        self._written_bytes = written_bytes

    def create(self, name: str) -> Any:
        return CountedFile(super().create(name), self._written_bytes)


@pytest.fixture
def written_bytes() -> list[int]:
    """The bytes of each write."""
    return []


@pytest.fixture
def file(
    tmp_path: Path, written_bytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[QueueStore]:
    monkeypatch.setattr(store, "Directory", lambda path: CountingDirectory(path, written_bytes))
    file = QueueStore(tmp_path / "queue", LogSettings())
    yield file
    file.close()


def sync(file: QueueStore) -> None:
    done = threading.Event()
    file.sync(lambda error: None if error else done.set())
    assert done.wait(WAIT_S)


def locations(file: QueueStore) -> list[int]:
    return [location for location, *_ in file.entries(0)]


def test_one_write_and_one_sync_serve_all_blocks_before_a_flush(
    file: QueueStore, written_bytes: list[int]
) -> None:
    sync(file)
    before = len(written_bytes)
    for _ in range(100):
        file.write_block(BLOCK, bytes(KIB))
    assert len(written_bytes) == before
    sync(file)
    assert len(written_bytes) == before + 1
    assert len(locations(file)) == 100


def test_much_is_written_before_anybody_asks_for_a_sync(
    file: QueueStore, written_bytes: list[int]
) -> None:
    for _ in range(9):
        file.write_block(BLOCK, bytes(512 * KIB))
    eventually(lambda: len(locations(file)) >= 8, WAIT_S, "the first 4 MiB are durable")
    assert len(locations(file)) == 8
    sync(file)
    assert len(locations(file)) == 9


def test_a_sync_covers_what_the_log_had_before_it(file: QueueStore) -> None:
    """Nothing is left to hand over, and the sync is over when the log is asked how far it is."""
    for _ in range(8):
        file.write_block(BLOCK, bytes(512 * KIB))
    ends: SimpleQueue[int] = SimpleQueue()
    sync(file)
    threading.Thread(target=lambda: ends.put(file.synced_end())).start()
    assert ends.get(timeout=WAIT_S) > 4 * MIB
    assert file._synced == locations(file)[-1]


def test_a_sync_covers_a_copy_and_what_was_gathered_before_it(file: QueueStore) -> None:
    file.write_block(BLOCK, b"a" * KIB)
    sync(file)
    file.write_block(BLOCK, b"b" * KIB)
    (first,) = locations(file)
    copy = file.copy(first)
    sync(file)
    assert locations(file)[2:] == [copy]
    assert bytes(file.body(copy)) == b"a" * KIB


def test_the_file_is_not_sealed_when_it_is_closed(
    file: QueueStore, written_bytes: list[int]
) -> None:
    """Nobody opens it again."""
    file.write_block(BLOCK, b"a")
    sync(file)
    before = len(written_bytes)
    file.close()
    assert len(written_bytes) == before
