"""All file operations that the durability of the log rests on.

`Disk` is a contract, so that a test can record every operation and replay the states that a power
failure allows. `Directory` is the real disk.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.files import make_directory, sync_directory

_IOV_MAX = 1024
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def _os_error() -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))


class _Mapping:
    """A file that stays mapped for reading until the last view of it is gone.

    It does not use `mmap.mmap`, which keeps a descriptor for each map: a reader that holds many
    views of a growing file would run out of descriptors.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            raise _os_error()
        weakref.finalize(self, _libc.munmap, address, size).atexit = False
        self._buffer = (address, size)

    def view(self) -> memoryview:
        return memoryview(pa.foreign_buffer(*self._buffer, self)).cast("B")


class AppendFile(Protocol):
    """A file that grows at its end."""

    def size(self) -> int: ...
    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Append all of `parts`. After an error the file may hold any prefix of them."""

    def sync(self) -> None:
        """Return once everything written survives a power failure."""

    def truncate(self, size: int) -> None: ...
    def punch(self, start: int, length: int) -> None:
        """Free the blocks of a range, if the file system can; they then read as zeros."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One flat directory."""

    def names(self) -> list[str]: ...
    def create(self, name: str) -> AppendFile: ...
    def open(self, name: str) -> AppendFile: ...
    def map(self, name: str, room: int = 0) -> memoryview:
        """Map the present contents. The view stays readable while it lives, even once unlinked.

        It extends up to `room` bytes beyond the end of the file. The caller must not touch those
        before the file has grown over them.
        """

    def unlink(self, name: str) -> None: ...
    def sync(self) -> None:
        """Make creations and removals of names durable."""

    def path(self, name: str) -> str: ...


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        views = [memoryview(part) for part in parts if len(part)]
        first = 0
        while first < len(views):
            written = os.writev(self._descriptor, views[first : first + _IOV_MAX])
            while first < len(views) and written >= len(views[first]):
                written -= len(views[first])
                first += 1
            if written:
                views[first] = views[first][written:]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def punch(self, start: int, length: int) -> None:
        if _libc.fallocate(self._descriptor, _PUNCH_HOLE_KEEP_SIZE, start, length) != 0:
            error = _os_error()
            if error.errno != errno.EOPNOTSUPP:
                raise error

    def close(self) -> None:
        os.close(self._descriptor)


class Directory:
    """A directory of a local file system; created, with a durable name, if it is missing."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        make_directory(self._root)

    def names(self) -> list[str]:
        return sorted(os.listdir(self._root))

    def create(self, name: str) -> AppendFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return _File(os.open(self._root / name, flags, 0o644))

    def open(self, name: str) -> AppendFile:
        return _File(os.open(self._root / name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))

    def map(self, name: str, room: int = 0) -> memoryview:
        descriptor = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            return _Mapping(descriptor, size + room).view() if size else memoryview(b"")
        finally:
            os.close(descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(self._root / name)

    def sync(self) -> None:
        sync_directory(self._root)

    def path(self, name: str) -> str:
        return str(self._root / name)
