"""Another process of the machine reads the files of a log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import NotFoundError, StorageError
from headrace.log import Directory, Extent, Log, LogFiles
from headrace.settings import KIB, LogSettings

SMALL = LogSettings(segment_bytes=1 << 16, group_bytes_max=1 << 14, idle_seal_s=3600)
PAYLOADS = [bytes([n + 1]) * (n * 997 % 9000) for n in range(100)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log of several segments."""
    log = Log(Directory(tmp_path), SMALL)
    for payload in PAYLOADS:
        log.append([[payload]])
    log.drain()
    assert len(log.segments()) > 3
    yield log
    log.close()


def extents(log: Log) -> list[Extent]:
    return list(log.extents(offset for offset, _ in log.scan()))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read."""
    found: list[int] = []
    preadv = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        found.append(preadv(descriptor, buffers, offset))
        return found[-1]

    monkeypatch.setattr(os, "preadv", counted)
    return found


def test_small_payloads_are_read_at_once_and_keep_nothing_of_what_lies_between_them(
    tmp_path: Path, reads: list[int]
) -> None:
    log = Log(Directory(tmp_path), LogSettings(idle_seal_s=None))
    offsets = log.append([[b"%05d" % number * 40] for number in range(4_000)])
    log.drain()
    every_tenth = list(log.extents(offsets[::10]))
    found = list(LogFiles(tmp_path).read(every_tenth))
    assert [bytes(each) for each in found] == [b"%05d" % n * 40 for n in range(0, 4_000, 10)]
    assert len(reads) < 10
    assert max(reads) <= 256 * KIB
    assert {memoryview(each.obj).nbytes for each in found} == {200}
    log.close()


def test_payloads_that_lie_far_apart_are_read_one_by_one(tmp_path: Path, reads: list[int]) -> None:
    log = Log(Directory(tmp_path), LogSettings(idle_seal_s=None))
    first, _, last = log.append([[b"x"], [bytes(20 * KIB)], [b"y"]])
    log.drain()
    found = list(LogFiles(tmp_path).read(log.extents([first, last])))
    assert [bytes(each) for each in found] == [b"x", b"y"]
    assert len(reads) == 2
    assert max(reads) < 100
    log.close()


def test_a_large_payload_is_not_copied_because_of_small_ones_behind_it(
    tmp_path: Path, reads: list[int]
) -> None:
    log = Log(Directory(tmp_path), LogSettings(idle_seal_s=None))
    offsets = log.append([[bytes(5 * KIB)], [b"x"], [b"y"], [bytes(5 * KIB)]])
    log.drain()
    found = list(LogFiles(tmp_path).read(log.extents(offsets)))
    assert [len(each) for each in found] == [5 * KIB, 1, 1, 5 * KIB]
    assert len(reads) == 3
    log.close()


def test_a_payload_that_reaches_beyond_its_extent_is_refused_among_others(
    tmp_path: Path,
) -> None:
    log = Log(Directory(tmp_path), LogSettings(idle_seal_s=None))
    offsets = log.append([[b"a" * 64], [b"b" * 64], [b"c" * 64]])
    log.drain()
    first, second, third = log.extents(offsets)
    for wrong in (
        second._replace(bytes=second.bytes - 8),
        second._replace(offset=second.offset + 8),
    ):
        with pytest.raises(NotFoundError):
            list(LogFiles(tmp_path).read([first, wrong, third]))
    log.close()


def test_payloads_are_read_from_the_files_in_any_order(log: Log, tmp_path: Path) -> None:
    found = [bytes(payload) for payload in LogFiles(tmp_path).read(extents(log))]
    assert found == PAYLOADS
    backwards = LogFiles(tmp_path).read(reversed(extents(log)))
    assert [bytes(payload) for payload in backwards] == PAYLOADS[::-1]


def test_what_was_read_stays_when_it_is_given_up(log: Log, tmp_path: Path) -> None:
    found = list(LogFiles(tmp_path).read(extents(log)))
    log.release_before(log.synced_end)
    assert [bytes(payload) for payload in found] == PAYLOADS


@pytest.mark.parametrize("kept", [5, 40, 99])
def test_what_was_given_up_is_refused_and_never_read_as_zeros(
    log: Log, tmp_path: Path, kept: int
) -> None:
    """The log removes whole files, and frees blocks of the file in which the release ends."""
    where = extents(log)
    log.release_before(where[kept].offset)
    found = LogFiles(tmp_path).read(where[kept:])
    assert [bytes(payload) for payload in found] == PAYLOADS[kept:]
    for extent in where[:kept]:
        try:
            [payload] = LogFiles(tmp_path).read([extent])
        except NotFoundError:
            continue
        # Its block also holds a payload that is kept.
        assert bytes(payload) == PAYLOADS[where.index(extent)]
    with pytest.raises(NotFoundError, match="ask the owner of the log where the payload is now"):
        list(LogFiles(tmp_path).read(where[: kept + 1]))


def test_an_extent_that_is_no_payload_is_refused(log: Log, tmp_path: Path) -> None:
    [*_, last] = extents(log)
    for wrong in (
        last._replace(offset=last.offset + 8),
        last._replace(bytes=last.bytes - 8),
        last._replace(offset=log.synced_end, bytes=64),
    ):
        with pytest.raises(NotFoundError):
            list(LogFiles(tmp_path).read([wrong]))


def test_a_file_that_cannot_be_read_is_a_storage_error(log: Log, tmp_path: Path) -> None:
    first = extents(log)[0]
    wrong = first._replace(segment=7)
    (tmp_path / f"{7:020d}.log").mkdir()
    with pytest.raises(StorageError, match="directory"):
        list(LogFiles(tmp_path).read([wrong]))
