"""Writers that die or run out of disk, and cleanup beside readers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NotFoundError, StorageError
from headrace.exchange import (
    AttemptCleanup,
    MapOutputReader,
    MapTask,
    OutputRegistry,
    PinnedStage,
)
from headrace.storage import Objects, local_objects, open_objects
from tests.exchange.outputs import TASK, keys_of, stored, write


class Died(BaseException):
    """Stands for the death of a process; nothing in `src` catches it."""


class DeadlyObjects:
    """Kill their user before or after its change of this number."""

    def __init__(self, objects: Objects, change: int, when: str) -> None:
        self._objects = objects
        self._left = change
        self._when = when
        self.get, self.get_range, self.head = objects.get, objects.get_range, objects.head
        self.list, self.move = objects.list, objects.move

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._change("put", key, data)

    def put_all(self, objects: Sequence[tuple[str, bytes | bytearray | memoryview]]) -> None:
        for key, data in objects:
            self.put(key, data)

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        return bool(self._change("put_if_absent", key, data))

    def delete_all(self, prefix: str) -> None:
        for info in self.list(prefix):
            self.delete(info.key)

    def delete(self, key: str) -> None:
        self._change("delete", key)

    def _change(self, name: str, *arguments: Any) -> Any:
        self._left -= 1
        if self._left < 0 and self._when == "before":
            raise Died
        value = getattr(self._objects, name)(*arguments)
        if self._left < 0:
            raise Died
        return value


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_that_died_between_its_requests_published_all_or_nothing(
    objects: Objects, when: str
) -> None:  # proves G19
    reader = MapOutputReader(objects)
    for change in range(20):
        try:
            write(DeadlyObjects(objects, change, when), {0: [1], 2: [2]})
        except Died:
            with suppress(NotFoundError):
                index = reader.resolve(TASK)
                assert [keys_of(reader.read(index, each)) for each in (0, 2)] == [[1], [2]]
                break
        else:
            break
    else:
        raise AssertionError("it never finished")
    assert keys_of(reader.read_partition(TASK, 0)) == [1]
    AttemptCleanup(objects, now_ms=lambda: 1 << 50).cleanup_expired_attempts(0)
    latest = OutputRegistry(objects).lookup(TASK).attempt
    assert {key.split("/")[4] for key in stored(objects, TASK.directory)} == {str(latest)}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cleanup_that_died_is_finished_by_the_next(objects: Objects, when: str) -> None:
    # proves G22
    replaced, given_up = TASK, MapTask(1, 2, 4)

    def clean_up(objects: Objects) -> None:
        AttemptCleanup(objects, now_ms=lambda: 1 << 50).cleanup_expired_attempts(0)

    for change in range(30):
        objects.delete_all("shuffle")
        write(objects, {0: [1]}, replaced)
        write(objects, {0: [2]}, replaced, replaces=1)
        claim = OutputRegistry(objects).claim(given_up, 0, 1_000)
        objects.put(given_up.part(claim.attempt, 0), b"half a file")
        try:
            clean_up(DeadlyObjects(objects, change, when))
            is_done = True
        except Died:
            is_done = False
        clean_up(objects)
        assert {key.split("/")[4] for key in stored(objects, replaced.directory)} == {"2"}
        assert stored(objects, given_up.directory) == []
        if is_done:
            break
    else:
        raise AssertionError("it never finished")
    assert change > 5


class FullDisk(FileIO):
    """A file on a disk that has so many bytes left."""

    left = 0

    def write(self, data: Any, /) -> int:
        cls = type(self)
        if not cls.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write(memoryview(data)[: cls.left])
        cls.left -= written
        return written


def test_a_full_disk_leaves_no_published_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # proves G19, G27
    monkeypatch.setattr(local_objects, "FileIO", FullDisk)
    messages = []
    for space in range(0, 1 << 20, 211):
        FullDisk.left = space
        directory = tmp_path / str(space)
        objects = open_objects(str(directory))
        try:
            write(objects, {0: range(40), 1: range(7)})
            break
        except StorageError as error:
            messages.append(str(error))
        assert OutputRegistry(objects).published(1, 2) == {}
        assert list((directory / ".incoming").iterdir()) == []
        FullDisk.left = 1 << 20
        assert write(objects, {0: [1]}).is_mine
        assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [1]
    assert len(messages) > 5
    for message in messages:
        assert message.endswith("No space left on device; free some space there, then try again")
        assert "\n" not in message


@pytest.mark.long
def test_cleanup_beside_readers_takes_nothing_that_they_hold(tmp_path: Path) -> None:
    # proves G22
    objects = open_objects(str(tmp_path / "objects"))
    now = [1_000]
    cleanup = AttemptCleanup(objects, now_ms=lambda: now[0])
    attempt = write(objects, {0: [1]}, now_ms=now[0]).output.attempt
    done = threading.Event()
    removed = 0

    def clean_up() -> None:
        nonlocal removed
        while not done.is_set():
            removed += cleanup.cleanup_expired_attempts(1)

    cleaner = threading.Thread(target=clean_up)
    cleaner.start()
    reader = MapOutputReader(objects)
    try:
        for _ in range(25):
            with PinnedStage(objects, 1, 2) as stage:
                held = stage.lookup(3)
                rows = {0: [attempt + 1]}
                attempt = write(objects, rows, replaces=attempt, now_ms=now[0]).output.attempt
                now[0] += 10_000
                assert keys_of(reader.read(reader.index(held), 0)) == [held.attempt]
    finally:
        done.set()
        cleaner.join()
    assert keys_of(reader.read_partition(TASK, 0)) == [attempt]
    removed += cleanup.cleanup_expired_attempts(1)
    assert removed == attempt - 1
    assert stored(objects, "shuffle/1/2/removed") == []
