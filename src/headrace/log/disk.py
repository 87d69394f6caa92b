"""The file operations that the log depends on: the whole list of what durability rests on.

`Disk` is a contract so that a test can record every operation and replay the states that a
power failure would allow. `Directory` is the real one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

_IOV_MAX = 1024
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01


class AppendFile(Protocol):
    """A file that grows at its end."""

    def size(self) -> int: ...
    def write(self, parts: Sequence[Any]) -> None:
        """Append all of `parts`; on an error any prefix of them may have been written."""

    def sync(self) -> None:
        """Return once everything written survives a power failure."""

    def truncate(self, size: int) -> None: ...
    def punch(self, start: int, length: int) -> None:
        """Give the blocks of a range back to the file system; it then reads as zeros."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One flat directory."""

    def names(self) -> list[str]: ...
    def create(self, name: str) -> AppendFile: ...
    def open(self, name: str) -> AppendFile: ...
    def map(self, name: str) -> memoryview:
        """The present contents, readable for as long as the view lives, even once unlinked."""

    def unlink(self, name: str) -> None: ...
    def sync(self) -> None:
        """Make creations and removals of names durable."""

    def path(self, name: str) -> str: ...


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def write(self, parts: Sequence[Any]) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        at = 0
        while at < len(views):
            written = os.writev(self._descriptor, views[at : at + _IOV_MAX])
            while at < len(views) and written >= len(views[at]):
                written -= len(views[at])
                at += 1
            if written:
                views[at] = views[at][written:]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def punch(self, start: int, length: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        call = libc.fallocate
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        if call(self._descriptor, _PUNCH_HOLE_KEEP_SIZE, start, length) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def close(self) -> None:
        os.close(self._descriptor)


class Directory:
    """A directory of a local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return sorted(os.listdir(self._root))

    def create(self, name: str) -> AppendFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return _File(os.open(self._root / name, flags, 0o644))

    def open(self, name: str) -> AppendFile:
        return _File(os.open(self._root / name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))

    def map(self, name: str) -> memoryview:
        descriptor = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(self._root / name)

    def sync(self) -> None:
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def path(self, name: str) -> str:
        return str(self._root / name)
