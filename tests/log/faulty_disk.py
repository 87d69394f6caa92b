"""A disk on which the n-th change fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.log import AppendFile, Disk


@dataclass
class Faults:
    """The numbers, from zero, of the changes of the disk that fail."""

    first: int
    forever: bool = False
    code: int = errno.EIO
    calls: int = 0
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self) -> bool:
        with self.lock:
            at, self.calls = self.calls, self.calls + 1
            strikes = at >= self.first if self.forever else at == self.first
            self.failed += strikes
            return strikes

    def pass_or_raise(self) -> None:
        if self.strikes():
            raise self.error()

    def error(self) -> OSError:
        return OSError(self.code, os.strerror(self.code))


class FaultyDisk:
    def __init__(self, disk: Disk, faults: Faults) -> None:
        self._disk = disk
        self._faults = faults
        self.names, self.map, self.path = disk.names, disk.map, disk.path

    def create(self, name: str) -> AppendFile:
        self._faults.pass_or_raise()
        return _FaultyFile(self._disk.create(name), self._faults)

    def open(self, name: str) -> AppendFile:
        return _FaultyFile(self._disk.open(name), self._faults)

    def unlink(self, name: str) -> None:
        self._faults.pass_or_raise()
        self._disk.unlink(name)

    def sync(self) -> None:
        self._faults.pass_or_raise()
        self._disk.sync()


class _FaultyFile:
    def __init__(self, file: AppendFile, faults: Faults) -> None:
        self._file = file
        self._faults = faults
        self.size, self.close = file.size, file.close

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._faults.strikes():
            whole = b"".join(parts)
            self._file.write([whole[: len(whole) // 2]])
            raise self._faults.error()
        self._file.write(parts)

    def sync(self) -> None:
        self._faults.pass_or_raise()
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._faults.pass_or_raise()
        self._file.truncate(size)

    def punch(self, start: int, length: int) -> None:
        self._faults.pass_or_raise()
        self._file.punch(start, length)
