"""Drops segments and releases space: the rest stays, and the disk gets the space back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import DataError, NotFoundError
from headrace.log import Directory, Log
from headrace.settings import LogSettings
from headrace.testing.power import RecordedDisk
from tests.log.bounded_threads import run_all
from tests.log.recorded_log import contents

QUIET = LogSettings(idle_seal_s=3600)
SMALL = LogSettings(segment_bytes=2000, idle_seal_s=3600)


@pytest.fixture
def in_segments(tmp_path: Path) -> Iterator[Log]:
    """A log of ten closed segments with one payload each, and a newest one."""
    log = Log(Directory(tmp_path), SMALL)
    for number in range(11):
        log.wait(log.append([[b"%02d" % number * 1000]])[0])
    assert len(log.segments()) == 11
    yield log
    log.close()


@pytest.mark.long
def test_maps_go_with_their_last_view(in_segments: Log, tmp_path: Path) -> None:
    views = [payload for _, payload in in_segments.scan()]
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    assert bytes(views.pop()[:2]) == b"10"
    views.clear()
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_dropped_segment_is_gone_and_its_views_stay_readable(
    in_segments: Log, tmp_path: Path
) -> None:
    everything = dict(in_segments.scan())
    middle, first = in_segments.segments()[4], in_segments.segments()[0]
    for segment in (middle, first):
        in_segments.drop(segment)
        with pytest.raises(NotFoundError):
            in_segments.drop(segment)
    for offset, payload in everything.items():
        if any(gone.base <= offset < gone.end for gone in (middle, first)):
            with pytest.raises(NotFoundError):
                in_segments.read(offset)
        else:
            assert in_segments.read(offset) == payload
    assert len(contents(in_segments)) == 9
    assert [bytes(view[:2]) for view in everything.values()] == [b"%02d" % n for n in range(11)]
    assert len(list(tmp_path.glob("*.log"))) == 9
    assert len(list(tmp_path.glob("*.dropped"))) == 1


def test_the_newest_segment_cannot_be_dropped(in_segments: Log) -> None:
    with pytest.raises(NotFoundError):
        in_segments.drop(in_segments.segments()[-1])


def test_segments_are_dropped_by_several_threads_at_once(in_segments: Log, tmp_path: Path) -> None:
    closed = in_segments.segments()[:-1]
    run_all([partial(in_segments.drop, segment) for segment in closed])
    in_segments.close()
    assert len(list(tmp_path.iterdir())) == 1
    reopened = Log(Directory(tmp_path), SMALL)
    assert [payload[:2] for _, payload in contents(reopened)] == [b"10"]
    reopened.close()


def test_a_scan_passes_over_a_segment_that_is_dropped_meanwhile(in_segments: Log) -> None:
    scan = in_segments.scan()
    assert bytes(next(scan)[1][:2]) == b"00"
    for segment in in_segments.segments()[:5]:
        in_segments.drop(segment)
    assert [bytes(payload[:2]) for _, payload in scan] == [b"%02d" % n for n in range(5, 11)]


def test_a_file_that_vanished_is_an_error_and_not_passed_over(
    in_segments: Log, tmp_path: Path
) -> None:  # proves G4
    gone = sorted(tmp_path.glob("*.log"))[3]
    gone.unlink()
    with pytest.raises(DataError, match=f"{gone.name} is damaged"):
        contents(in_segments)


def blocks(root: Path) -> int:
    return sum(path.stat().st_blocks for path in root.glob("*.log"))


def test_released_space_is_free_and_what_was_released_is_refused(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1 << 20, idle_seal_s=3600)
    log = Log(Directory(tmp_path), settings)
    offsets = []
    for _ in range(40):
        offsets += log.append([[b"x" * 65536]])
        log.wait(offsets[-1])
    before = blocks(tmp_path)
    log.release_before(offsets[24])
    assert len(log.segments()) < 3
    assert blocks(tmp_path) <= before * 0.45
    for _ in range(2):
        for offset in offsets[:24]:
            with pytest.raises(NotFoundError):
                log.read(offset)
        assert [offset for offset, _ in log.scan()] == offsets[24:]
        log.release_before(offsets[3])
        log.close()
        log = Log(Directory(tmp_path), settings)
    log.close()


def test_a_log_that_is_released_to_its_end_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(5):
        log = Log(Directory(tmp_path), QUIET)
        assert contents(log) == []
        offset = log.append([[b"%d" % number]])[0]
        log.wait(offset)
        assert contents(log) == [(offset, b"%d" % number)]
        end = log.synced_end
        log.release_before(end)
        log.close()
        reopened = Log(Directory(tmp_path), QUIET)
        assert reopened.synced_end >= end
        reopened.close()


def test_only_whole_synced_frames_can_be_released(in_segments: Log) -> None:
    offsets = [offset for offset, _ in in_segments.scan()]
    for wrong in (offsets[3] + 8, offsets[-1] + 1, in_segments.synced_end + 8, 1 << 40):
        with pytest.raises(NotFoundError):
            in_segments.release_before(wrong)
    assert [offset for offset, _ in in_segments.scan()] == offsets
    in_segments.release_before(in_segments.segments()[2].end)
    assert [offset for offset, _ in in_segments.scan()] == offsets[3:]


def test_an_empty_log_has_nothing_to_release() -> None:
    log = Log(RecordedDisk(), QUIET)
    log.release_before(0)
    assert contents(log) == []
    log.close()
