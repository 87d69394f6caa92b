"""Measures the disk itself: the yardstick of every benchmark that writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.settings import KIB, MIB

SYNC_EVERY_BYTES = 8 * MIB


def sequential_write_rate(path: Path, total_bytes: int, chunk_bytes: int) -> float:
    """Return the bytes per second of plain sequential writes with one fdatasync per 8 MiB.

    The file stays, so that its blocks and memory are not free for the next file: the code that this
    is compared with does not find them free either.
    """
    chunk = os.urandom(chunk_bytes)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        begin = time.perf_counter()
        unsynced = 0
        for _ in range(total_bytes // chunk_bytes):
            os.write(descriptor, chunk)
            unsynced += chunk_bytes
            if unsynced >= SYNC_EVERY_BYTES:
                os.fdatasync(descriptor)
                unsynced = 0
        os.fdatasync(descriptor)
        return total_bytes / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def empty_files_s(directory: Path, count: int) -> float:
    """Return the seconds to create `count` empty files in one directory and sync it once."""
    scratch = directory / "yardsticks"
    scratch.mkdir()
    names = [f"{scratch}/{number:08d}" for number in range(count)]
    begin = time.perf_counter()
    for name in names:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    descriptor = os.open(scratch, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    seconds = time.perf_counter() - begin
    for name in names:
        os.unlink(name)
    scratch.rmdir()
    return seconds


@contextmanager
def small_syncs(directory: Path) -> Iterator[Callable[[], float]]:
    """Yield a function that appends 4 KiB to a file, syncs it, and returns the seconds."""
    path = directory / "yardstick"
    block = os.urandom(4 * KIB)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def sync_s() -> float:
        begin = time.perf_counter()
        os.write(descriptor, block)
        os.fdatasync(descriptor)
        return time.perf_counter() - begin

    try:
        yield sync_s
    finally:
        os.close(descriptor)
        path.unlink()
