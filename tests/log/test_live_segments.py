"""Readers keep views of a segment while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.log import Directory, Log, live_segments
from headrace.settings import KIB, LogSettings

FRAMES = 400


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log(Directory(tmp_path), LogSettings(idle_seal_s=60))
    yield opened
    opened.close()


def mappings(root: Path) -> int:
    """Return how many mappings of files in the directory this process has."""
    return Path("/proc/self/maps").read_text().count(str(root))


def append_and_read(log: Log, number: int) -> memoryview:
    [offset] = log.append([[b"%06d" % number * 100]])
    log.wait(offset)
    return log.read(offset)


def test_many_frames_of_the_newest_segment_are_held_by_few_mappings(
    tmp_path: Path, log: Log
) -> None:
    held = [append_and_read(log, number) for number in range(FRAMES)]
    assert mappings(tmp_path) <= 2
    assert [bytes(view) for view in held] == [b"%06d" % number * 100 for number in range(FRAMES)]


def test_a_segment_that_outgrows_its_mapping_is_mapped_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older mappings stay readable, and each stretch of room has one mapping."""
    monkeypatch.setattr(live_segments, "_ROOM_BYTES", 16 * KIB)
    held = [append_and_read(log, number) for number in range(FRAMES)]
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert written // (32 * KIB) <= mappings(tmp_path) <= written // (16 * KIB) + 2
    assert [bytes(view) for view in held] == [b"%06d" % number * 100 for number in range(FRAMES)]
    held.clear()
    append_and_read(log, FRAMES)
    assert mappings(tmp_path) <= 2


class Meanwhile(Directory):
    """Calls a function as soon as a file is mapped."""

    do: Callable[[], None] | None = None

    def map(self, name: str, room: int = 0) -> memoryview:
        data = super().map(name, room)
        if self.do:
            do, self.do = self.do, None
            do()
        return data


def test_a_segment_that_is_dropped_while_it_is_mapped_is_not_held(tmp_path: Path) -> None:
    disk = Meanwhile(tmp_path)
    log = Log(disk, LogSettings(idle_seal_s=60, segment_bytes=16 * KIB))
    offsets = []
    for _ in range(3):
        offsets += log.append([[b"x" * 10 * KIB]])
        log.wait(offsets[-1])
    oldest = log.segments()[0]
    assert offsets[0] < oldest.end <= offsets[-1]
    disk.do = lambda: log.drop(oldest)
    assert bytes(log.read(offsets[0])) == b"x" * 10 * KIB
    assert oldest not in log.segments()
    assert mappings(tmp_path) == 0
    log.close()
