"""A log on a recorded disk that remembers its promises: the oracle of power failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.log import Log
from headrace.settings import LogSettings
from headrace.testing.power import Files, RecordedDisk

NEVER = 1 << 60
AFTER_REPAIR = b"appended after the repair"


@dataclass(slots=True)
class Appended:
    payload: bytes
    offset: int = -1
    promised: int = NEVER
    """The point in time from which the payload must survive."""
    doubtful: int = NEVER
    """The point from which the payload may be gone: the log had begun to give it up."""
    gone: int = NEVER
    """The point from which the payload must be gone."""


class RecordedLog:
    """Drives a log, and checks what any state of its disk holds."""

    def __init__(
        self,
        settings: LogSettings,
        files: Files | None = None,
        kept: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        self.disk = RecordedDisk(files)
        self.settings = settings
        self.appended = [Appended(payload, offset, promised=0) for offset, payload in kept]
        self.log = Log(self.disk, settings)

    def append(self, *payloads: bytes) -> None:
        """Append in one call, and wait for the sync."""
        self._queue(payloads)
        self.log.wait(self.appended[-1].offset)

    def append_together(self, *calls: tuple[bytes, ...]) -> None:
        """Append in several calls that share one sync: the writer is busy until all are made."""
        busy, calls_made = threading.Event(), threading.Event()

        def hold(*_: object) -> None:
            busy.set()
            calls_made.wait(30)

        self.log.append([], hold)
        assert busy.wait(30)
        first = len(self.appended)
        for payloads in calls:
            self._queue(payloads)
        calls_made.set()
        self.log.wait(self.appended[-1].offset)
        assert len({each.promised for each in self.appended[first:]}) == 1

    def drop(self, index: int) -> None:
        segment = self.log.segments()[index]
        with self._giving_up(segment.base, segment.end):
            self.log.drop(segment)

    def release_before(self, index: int) -> None:
        """Release everything before the payload of that index among all appended ones."""
        offset = self.appended[index].offset
        with self._giving_up(0, offset):
            self.log.release_before(offset)

    def reopen(self) -> None:
        self.log.close()
        self.log = Log(self.disk, self.settings)

    def check(self, files: Files, point: int) -> RecordedLog:
        """Open and use what a power failure at `point` leaves, and return its recording."""
        log = Log(RecordedDisk(files), self.settings)
        found = contents(log)
        log.close()
        self._check_found(found, point)

        again = RecordedLog(self.settings, files, found)
        again.append(AFTER_REPAIR)
        again.log.close()
        lowest = max((each.offset for each in self.appended if each.promised <= point), default=0)
        assert again.appended[-1].offset > lowest, "an offset was used twice"
        reopened = Log(RecordedDisk(again.disk.files()), self.settings)
        assert contents(reopened) == [*found, (again.appended[-1].offset, AFTER_REPAIR)]
        reopened.close()
        return again

    def _check_found(self, found: list[tuple[int, bytes]], point: int) -> None:
        settled = [each for each in self.appended if each.promised <= point]
        for each in settled:
            is_there = (each.offset, each.payload) in found
            assert is_there or point >= each.doubtful, f"lost {each}"
            assert not is_there or point < each.gone, f"came back: {each}"
        known = {each.offset for each in settled}
        extra = [each for each in found if each[0] not in known]
        undecided = [(e.offset, e.payload) for e in self.appended if e.promised > point]
        assert extra == undecided[: len(extra)], "not a prefix of what was appended later"
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), "out of order"

    def _queue(self, payloads: tuple[bytes, ...]) -> None:
        batch = [Appended(payload) for payload in payloads]

        def done(_: list[int], error: HeadraceError | None) -> None:
            assert error is None
            for each in batch:
                each.promised = self.disk.point

        offsets = self.log.append([[each.payload] for each in batch], done)
        for each, offset in zip(batch, offsets, strict=True):
            each.offset = offset
        self.appended += batch

    @contextmanager
    def _giving_up(self, start: int, end: int) -> Iterator[None]:
        leaving = [each for each in self.appended if start <= each.offset < end]
        for each in leaving:
            each.doubtful = min(each.doubtful, self.disk.point)
        yield
        for each in leaving:
            each.gone = min(each.gone, self.disk.point)


def contents(log: Log) -> list[tuple[int, bytes]]:
    return [(offset, bytes(payload)) for offset, payload in log.scan()]
