"""The log in one process: it appends, reads, shares syncs, gives up space and closes."""

from __future__ import annotations

import array
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import HeadraceError, NotFoundError, StorageError, UsageError
from headrace.log import Directory, Log
from headrace.log import format as layout
from headrace.settings import LogSettings
from headrace.testing.power import RecordedDisk
from tests.log.bounded_threads import Holding, run_all
from tests.log.recorded_log import contents

QUIET = LogSettings(idle_seal_s=3600)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(Directory(tmp_path), QUIET)
    yield log
    log.close()


def test_what_was_appended_is_read_and_scanned_in_order(log: Log) -> None:
    payloads = [b"", b"1", b"22" * 3000, bytes(range(256)) * 300, b"12345678"]
    offsets = log.append([[payload] for payload in payloads])
    offsets += log.append([[b"head", b"", b"body" * 2000, b"tail"]])
    log.wait(offsets[-1])
    expected = [*payloads, b"head" + b"body" * 2000 + b"tail"]
    assert [bytes(log.read(offset)) for offset in offsets] == expected
    assert contents(log) == list(zip(offsets, expected, strict=True))
    for at, offset in enumerate(offsets):
        assert [each for each, _ in log.scan(offset)] == offsets[at:]
    assert list(log.scan(log.synced_end)) == []


def test_any_buffer_is_a_payload_and_its_bytes_are_what_is_read(log: Log) -> None:
    """Lengths are in bytes, whatever the items of the buffer are."""
    numbers = array.array("I", [1, 2, 3])
    matrix = np.arange(6, dtype=np.int64).reshape(2, 3)
    parts = [numbers, matrix, pa.py_buffer(b"arrow"), bytearray(b"mutable"), memoryview(b"view")]
    offsets = log.append([[part] for part in parts])
    log.wait(offsets[-1])
    expected = [numbers.tobytes(), matrix.tobytes(), b"arrow", b"mutable", b"view"]
    assert [bytes(log.read(offset)) for offset in offsets] == expected


@pytest.mark.parametrize("bad", ["text", 7, None, np.arange(10)[::2]])
def test_a_payload_that_is_not_bytes_is_refused_as_a_whole(log: Log, bad: object) -> None:
    with pytest.raises(TypeError):
        log.append([[b"good"], [bad]])
    offset = log.append([[b"after"]])[0]
    log.wait(offset)
    assert contents(log) == [(offset, b"after")]


def test_payloads_are_aligned_so_that_arrow_can_use_them_in_place(log: Log) -> None:
    offsets = log.append([[b"x" * length] for length in range(20)])
    log.wait(offsets[-1])
    for offset in offsets:
        view = log.read(offset)
        assert view.readonly
        assert len(view) == 0 or pa.py_buffer(view).address % 8 == 0


def test_a_payload_that_is_too_long_for_its_length_field_is_refused(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PAYLOAD_BYTES_MAX", 100)
    with pytest.raises(
        UsageError, match="a payload has 101 bytes, and the log takes 100; append less"
    ):
        log.append([[b"x" * 50, b"y" * 51]])
    log.wait(log.append([[b"x" * 100]])[0])


def test_nothing_is_visible_before_it_is_synced() -> None:
    syncing, go_on = threading.Event(), threading.Event()

    class SlowDisk(RecordedDisk):
        def _sync(self, inode: object) -> None:
            if armed:
                syncing.set()
                assert go_on.wait(30)

    armed = False
    log = Log(SlowDisk(), QUIET)
    first = log.append([[b"first"]])[0]
    log.wait(first)
    armed = True
    second = log.append([[b"second"]])[0]
    assert syncing.wait(30)
    assert contents(log) == [(first, b"first")]
    with pytest.raises(NotFoundError, match="not synced"):
        log.read(second)
    armed = False
    go_on.set()
    log.wait(second)
    assert bytes(log.read(second)) == b"second"
    log.close()


def test_a_callback_may_read_what_it_reports_and_the_end_moves_after_it(log: Log) -> None:
    seen: list[tuple[bytes, bool]] = []

    def done(offsets: list[int], error: HeadraceError | None) -> None:
        assert error is None
        seen.append((bytes(log.read(offsets[0])), log.synced_end <= offsets[0]))

    log.append([[b"payload"]], done)
    log.drain()
    assert seen == [(b"payload", True)]


def test_callbacks_are_called_in_the_order_of_the_appends(log: Log) -> None:
    order: list[int] = []
    for number in range(500):
        last = log.append([[b"x"]], lambda *_, number=number: order.append(number))
    log.wait(last[0])
    assert order == list(range(500))


def test_appenders_share_syncs_and_each_keeps_its_order(tmp_path: Path) -> None:
    threads, each = 16, 60
    log = Log(Directory(tmp_path), LogSettings(segment_bytes=30_000, group_bytes_max=4000))
    offsets: list[list[int]] = [[] for _ in range(threads)]

    def appender(thread: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(each):
                offsets[thread] += log.append([[b"%02d" % thread, b"/%03d" % number * 20]])
                log.wait(offsets[thread][-1])

        return work

    run_all([appender(thread) for thread in range(threads)])
    everything = [offset for group in offsets for offset in group]
    assert len(set(everything)) == threads * each
    assert log.syncs < threads * each
    assert all(group == sorted(group) for group in offsets)
    for thread, group in enumerate(offsets):
        for number, offset in enumerate(group):
            assert log.read(offset) == b"%02d" % thread + b"/%03d" % number * 20
    assert [offset for offset, _ in log.scan()] == sorted(everything)
    log.close()


def test_calls_that_wait_for_the_same_sync_make_one_group(log: Log) -> None:
    holding = Holding(log)
    offsets = [log.append([[b"%d" % number]])[0] for number in range(20)]
    holding.let_go()
    log.wait(offsets[-1])
    assert log.syncs == 2


def test_one_call_is_never_split_between_segments(tmp_path: Path) -> None:
    log = Log(Directory(tmp_path), LogSettings(segment_bytes=500, group_bytes_max=100))
    calls = [log.append([[bytes(90)]] * 10) for _ in range(10)]
    log.wait(calls[-1][-1])
    for offsets in calls:
        holding = [s for s in log.segments() if s.base <= offsets[0] < s.end]
        assert len(holding) == 1
        assert holding[0].base <= offsets[-1] < holding[0].end
    log.close()


def test_a_segment_that_is_not_full_is_not_followed_by_another(tmp_path: Path) -> None:
    """This holds whenever appends meet the creation of the first file."""
    log = Log(Directory(tmp_path), QUIET)
    run_all([lambda: log.wait(log.append([[b"x" * 100]])[0])] * 8)
    for _ in range(200):
        log.append([[b"x"]])
    log.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_appenders_wait_while_too_much_is_pending() -> None:
    log = Log(RecordedDisk(), LogSettings(pending_bytes_max=1000, idle_seal_s=3600))
    holding = Holding(log)
    appended = threading.Semaphore(0)
    finished = threading.Event()

    def work() -> None:
        for number in range(50):
            log.append([[b"%03d" % number * 100]])
            appended.release()
        finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(4):
        assert appended.acquire(timeout=30)
    assert not appended.acquire(timeout=0.2), "it did not wait"
    holding.let_go()
    assert finished.wait(30)
    thread.join(30)
    log.close()
    assert [payload[:3] for _, payload in contents(log)] == [b"%03d" % n for n in range(50)]


def test_a_payload_larger_than_what_may_be_pending_goes_through() -> None:
    log = Log(RecordedDisk(), LogSettings(pending_bytes_max=10, group_bytes_max=10))
    for _ in range(20):
        offset = log.append([[b"x" * 1000], [b"y" * 1000]])[0]
    log.wait(offset)
    assert len(contents(log)) == 40
    log.close()


def test_closing_writes_what_is_pending_and_refuses_what_comes_later() -> None:
    log = Log(RecordedDisk(), LogSettings(pending_bytes_max=1000, idle_seal_s=3600))
    holding = Holding(log)
    sent: list[int] = []
    refused = threading.Semaphore(0)

    def work() -> None:
        while True:
            try:
                sent.extend(log.append([[bytes(300)]]))
            except UsageError:
                refused.release()
                return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    closer = threading.Thread(target=log.close)
    closer.start()
    holding.let_go()
    for thread in (*threads, closer):
        thread.join(30)
        assert not thread.is_alive(), "it hangs"
    assert [offset for offset, _ in contents(log)] == sorted(sent)
    for offset in sent:
        log.wait(offset)
    log.close()
    with pytest.raises(UsageError, match="closed"):
        log.append([[b"late"]])


def test_closing_from_many_threads_is_closing_once(tmp_path: Path) -> None:
    log = Log(Directory(tmp_path), QUIET)
    log.append([[b"x"]])
    run_all([log.close] * 8)


def test_waiting_for_what_was_never_appended_is_refused(log: Log) -> None:
    offset = log.append([[b"x"]])[0]
    log.wait(offset)
    for missing in (log.synced_end, 1 << 40):
        with pytest.raises(NotFoundError):
            log.wait(missing)


def test_reading_what_is_not_there_is_not_called_damage(log: Log) -> None:
    with pytest.raises(NotFoundError):
        log.read(0)
    offset = log.append([[b"x"]])[0]
    log.wait(offset)
    for missing in (log.synced_end, 1 << 40, layout.SEGMENT_HEADER.size):
        with pytest.raises(NotFoundError):
            log.read(missing)


def test_the_live_tail_is_read_while_it_grows(tmp_path: Path) -> None:
    log = Log(Directory(tmp_path), LogSettings(segment_bytes=5000))
    count = 400
    tail: list[bytes] = []

    def write() -> None:
        for number in range(count):
            log.append([[b"%04d" % number * 10]])

    def follow() -> None:
        position = 0
        while len(tail) < count:
            for offset, payload in log.scan(position):
                assert log.read(offset) == payload
                tail.append(bytes(payload[:4]))
                position = offset + layout.frame_bytes(len(payload))

    run_all([write, follow, follow_reads(log, count)])
    assert tail == [b"%04d" % number for number in range(count)]
    log.close()


def follow_reads(log: Log, count: int) -> Callable[[], None]:
    def work() -> None:
        while len(list(log.scan())) < count:
            pass

    return work


def test_views_of_a_growing_segment_hold_no_file_open(log: Log) -> None:
    held = []
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        offset = log.append([[b"%04d" % number]])[0]
        log.wait(offset)
        held.append(log.read(offset))
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert [bytes(view) for view in held] == [b"%04d" % number for number in range(200)]


def test_a_quiet_log_is_sealed_once() -> None:
    disk = RecordedDisk()
    log = Log(disk, LogSettings(idle_seal_s=0))
    offset = log.append([[b"x"]])[0]
    log.wait(offset)
    log.close()
    assert log.synced_end == offset + layout.frame_bytes(1) + layout.GROUP_BYTES
    assert disk.files()[f"{0:020d}.log"].count(layout.GROUP_MAGIC) == 2


def test_a_log_without_seals_writes_none_even_at_the_end() -> None:
    disk = RecordedDisk()
    log = Log(disk, LogSettings(idle_seal_s=None))
    offset = log.append([[b"x"]])[0]
    log.wait(offset)
    log.close()
    assert log.synced_end == offset + layout.frame_bytes(1)
    assert disk.files()[f"{0:020d}.log"].count(layout.GROUP_MAGIC) == 1


def test_a_directory_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    """A directory has a name that the log must create, which stops even root."""
    log = Log(Directory(tmp_path), QUIET)
    (tmp_path / f"{0:020d}.log").mkdir()
    with pytest.raises(StorageError):
        log.wait(log.append([[b"x"]])[0])
    log.close()
    with pytest.raises(StorageError):
        Log(Directory(tmp_path), QUIET)


def test_missing_directories_are_made(tmp_path: Path) -> None:
    log = Log(Directory(tmp_path / "a" / "b" / "c"), QUIET)
    log.wait(log.append([[b"x"]])[0])
    log.close()
    assert len(list((tmp_path / "a" / "b" / "c").iterdir())) == 1
