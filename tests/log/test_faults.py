"""Full disks and I/O errors: every call that changes the disk fails in turn."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace.errors import HeadraceError, NotFoundError, StorageError
from headrace.log import Directory, Log
from headrace.settings import LogSettings
from headrace.testing.power import Files, RecordedDisk
from tests.log.faulty_disk import Faults, FaultyDisk
from tests.log.recorded_log import NEVER, contents

SETTINGS = LogSettings(segment_bytes=300, group_bytes_max=150, idle_seal_s=3600)


class Appender:
    """Appends until the log refuses, and records the outcome of each append."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.told: dict[bytes, list[HeadraceError | None]] = {}
        self.refused: list[StorageError] = []

    def append(self, number: int) -> None:
        payload = b"%03d" % number * 30
        outcomes: list[HeadraceError | None] = []
        try:
            self._log.append([[payload]], lambda _, outcome: outcomes.append(outcome))
        except StorageError as error:
            self.refused.append(error)
        else:
            self.told[payload] = outcomes

    @property
    def acknowledged(self) -> list[bytes]:
        return [payload for payload, outcomes in self.told.items() if outcomes == [None]]

    @property
    def failed(self) -> list[bytes]:
        return [payload for payload, outcomes in self.told.items() if outcomes != [None]]


def each_fault(*, forever: bool, code: int) -> Iterator[Faults]:
    """Let each call fail in turn, until a run has no call of that number."""
    for first in count():
        faults = Faults(first, forever, code)
        yield faults
        if not faults.failed:
            assert first > 5
            return


def payloads(files: Files) -> list[bytes]:
    log = Log(RecordedDisk(files), SETTINGS)
    try:
        return [payload for _, payload in contents(log)]
    finally:
        log.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_failed_write_fails_all_later_ones_and_loses_nothing_acknowledged(
    forever: bool, code: int, one_by_one: bool
) -> None:  # proves G1, G27
    for faults in each_fault(forever=forever, code=code):
        disk = RecordedDisk()
        log = Log(FaultyDisk(disk, faults), SETTINGS)
        appender = Appender(log)
        for number in range(8):
            end = log.synced_end
            appender.append(number)
            if one_by_one and not appender.refused:
                with suppress(StorageError):
                    log.wait(end)
        log.close()

        assert all(len(outcomes) == 1 for outcomes in appender.told.values())
        sent = list(appender.told)
        assert sent == appender.acknowledged + appender.failed, "acknowledged after a failure"
        if appender.failed:
            with pytest.raises(StorageError, match=os.strerror(code)) as refusal:
                log.append([[b"later"]])
            assert refusal.value.do
            uncut = "could not be cut" in str(refusal.value)
            assert not uncut or forever
            for files in states_left(disk):
                found = payloads(files)
                assert found == sent[: len(found)]
                assert len(found) >= len(appender.acknowledged)
                assert uncut or found == appender.acknowledged, "a failed append is there"


def states_left(disk: RecordedDisk) -> Iterator[Files]:
    """Yield what another process finds, and what a power failure leaves."""
    yield disk.files()
    yield from disk.after_power_failure(disk.point, states_max=40)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_segment_that_could_not_be_begun_leaves_no_file(call: int) -> None:  # proves G1
    """After a failed sync the header is readable and may still not be on the disk."""
    disk = RecordedDisk()
    log = Log(FaultyDisk(disk, Faults(call)), SETTINGS)
    with pytest.raises(StorageError):
        log.wait(log.append([[b"x"]])[0])
    log.close()
    assert disk.files() == {}


@pytest.mark.parametrize("forever", [False, True])
def test_an_error_while_opening_changes_nothing_that_matters(forever: bool) -> None:  # proves G1
    origin = RecordedDisk()
    log = Log(origin, SETTINGS)
    appender = Appender(log)
    for number in range(8):
        appender.append(number)
    log.close()
    newest = max(origin.files())
    left = [
        {**origin.files(), newest: origin.files()[newest] + b"torn"},
        {**origin.files(), newest: origin.files()[newest][:20]},
    ]
    for files in left:
        expected = payloads(files)
        for first in count():
            faults = Faults(first, forever)
            disk = RecordedDisk(files)
            with suppress(StorageError):
                Log(FaultyDisk(disk, faults), SETTINGS).close()
            for state in states_left(disk):
                assert payloads(state) == expected
            if not faults.failed:
                break
        assert first >= 3


def test_an_error_while_giving_up_a_segment_leaves_a_log_that_works() -> None:  # proves G1, G4
    for fault in count():
        faults = Faults(first=NEVER)
        disk = RecordedDisk()
        log = Log(FaultyDisk(disk, faults), SETTINGS)
        for number in range(8):
            log.wait(log.append([[b"%03d" % number * 100]])[0])
        faults.first = faults.calls + fault
        for index in (1, 2, 0):
            segment = log.segments()[index]
            try_twice(partial(log.drop, segment), disk)
            assert segment not in log.segments()
        kept = contents(log)[-1]
        try_twice(partial(log.release_before, kept[0]), disk)
        failed, faults.first = faults.failed, NEVER
        last = log.append([[b"last"]])[0]
        log.wait(last)
        assert contents(log) == [kept, (last, b"last")]
        log.close()
        for state in states_left(disk):
            assert payloads(state) == [kept[1], b"last"]
        if not failed:
            break
    assert fault > 12


def try_twice(give_up: Callable[[], None], disk: RecordedDisk) -> None:
    """Call it again after an error; it may be done already, and the log can be opened."""
    try:
        give_up()
    except StorageError:
        for state in states_left(disk):
            Log(RecordedDisk(state), SETTINGS).close()
        with suppress(NotFoundError):
            give_up()


def test_everyone_who_waits_is_told_of_the_failure() -> None:
    release = threading.Event()

    class StuckDisk(RecordedDisk):
        def sync(self) -> None:
            assert release.wait(30)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = Log(StuckDisk(), LogSettings(pending_bytes_max=1000, idle_seal_s=3600))
    errors: list[StorageError] = []

    def append_and_wait() -> None:
        with pytest.raises(StorageError) as refusal:
            log.wait(log.append([[bytes(400)]])[0])
        errors.append(refusal.value)

    threads = [threading.Thread(target=append_and_wait) for _ in range(16)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 16
    assert all("No space left on device" in str(error) for error in errors)
    log.close()


def test_a_callback_that_raises_fails_the_log_and_not_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda call: seen.append(call.exc_value))
    log = Log(RecordedDisk(), SETTINGS)
    told: list[HeadraceError | None] = []
    busy, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        busy.set()
        assert go_on.wait(30)

    def bad(*_: object) -> None:
        raise ValueError("a bug")

    log.append([[b"first"]], hold)
    assert busy.wait(30)
    offset = log.append([[b"second"]], bad)[0]
    log.append([[b"third"]], lambda _, outcome: told.append(outcome))
    go_on.set()
    log.wait(offset)
    log.close()
    assert told == [None]
    assert [str(error) for error in seen] == ["a bug"]
    with pytest.raises(StorageError, match="a bug"):
        log.append([[b"fourth"]])


FILLS_THE_DISK = """
import resource, signal, sys
from pathlib import Path
from types import FrameType
from typing import Any
from headrace.errors import StorageError
from headrace.log import Directory, Log

root, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
log = Log(Directory(root))
acknowledged = 0
try:
    while True:
        log.wait(log.append([[b"%06d" % acknowledged * 500]])[0])
        acknowledged += 1
except StorageError as error:
    print(acknowledged, error)
log.close()
"""


def fill(root: Path, limit: int = 0) -> tuple[int, str]:
    command = [sys.executable, "-c", FILLS_THE_DISK, str(root), str(limit)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    acknowledged, _, message = run.stdout.partition(" ")
    return int(acknowledged), message


def check_filled(log: Log, acknowledged: int) -> None:
    found = [payload for _, payload in contents(log)]
    log.close()
    assert found == [b"%06d" % number * 500 for number in range(acknowledged)]
    assert acknowledged > 10


@pytest.mark.long
def test_a_file_size_limit_keeps_exactly_what_was_acknowledged(tmp_path: Path) -> None:  # proves G1
    acknowledged, message = fill(tmp_path / "log", limit=100_000)
    assert "File too large" in message
    log = Log(Directory(tmp_path / "log"))
    check_filled(log, acknowledged)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small tmpfs can only be mounted by root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True, timeout=30)


@pytest.mark.long
def test_a_full_disk_keeps_exactly_what_was_acknowledged(small_disk: Path) -> None:  # proves G1
    acknowledged, message = fill(small_disk / "log")
    assert "No space left on device" in message
    files = {path.name: path.read_bytes() for path in (small_disk / "log").iterdir()}
    check_filled(Log(RecordedDisk(files)), acknowledged)


@pytest.mark.parametrize("at", range(1, 30))
def test_an_interrupted_append_ends_the_log_and_nothing_of_it_is_written(
    tmp_path: Path, at: int
) -> None:
    """Ctrl-C can interrupt `append` at any line."""
    # proves G1
    log = Log(Directory(tmp_path / "log"), SETTINGS)
    kept = log.append([[b"kept"]])[0]
    log.wait(kept)
    steps = 0

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if frame.f_code.co_name in {"_add", "add", "_group"}:
            steps += event == "line"
            if steps == at:
                raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        log.append([[b"first"], [b"second"]])
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    interrupted = steps >= at
    if interrupted:
        with pytest.raises(StorageError, match="interrupted"):
            log.append([[b"later"]])
    log.close()
    again = Log(Directory(tmp_path / "log"), SETTINGS)
    found = [bytes(payload) for _, payload in again.scan()]
    again.close()
    assert found == ([b"kept"] if interrupted else [b"kept", b"first", b"second"])
