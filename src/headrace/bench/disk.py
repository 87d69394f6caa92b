"""The yardstick of everything that is written: the disk itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.settings import MIB

SYNC_EVERY_BYTES = 8 * MIB


def sequential_write_rate(directory: Path, total_bytes: int, chunk_bytes: int) -> float:
    """Bytes per second of plain sequential writes with one fdatasync per 8 MiB."""
    path = directory / "yardstick"
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
        path.unlink()
