"""Readers that hold on to what they read of a segment that grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.log import Directory, Log, live
from headrace.settings import KIB, LogSettings

FRAMES = 400


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log(Directory(tmp_path), LogSettings(idle_seal_s=60))
    yield opened
    opened.close()


def mappings(root: Path) -> int:
    """How many of this process's mappings are of files there."""
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
    """What was mapped before stays readable, and there is a mapping for each stretch of room."""
    monkeypatch.setattr(live, "_ROOM_BYTES", 16 * KIB)
    held = [append_and_read(log, number) for number in range(FRAMES)]
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert written // (32 * KIB) <= mappings(tmp_path) <= written // (16 * KIB) + 2
    assert [bytes(view) for view in held] == [b"%06d" % number * 100 for number in range(FRAMES)]
    held.clear()
    append_and_read(log, FRAMES)
    assert mappings(tmp_path) <= 2
