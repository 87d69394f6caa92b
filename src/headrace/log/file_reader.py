"""A log that another process of this machine writes, read from its files.

Its owner says where payloads lie. They are read into memory, not mapped: a mapping would show
zeros where the owner gives something up, and end the process where it cuts a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from headrace.errors import NotFoundError, StorageError
from headrace.log import format as layout
from headrace.log.segments import Extent, segment_name


class LogFiles:
    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)

    def read(self, extents: Iterable[Extent]) -> Iterator[memoryview]:
        """The payloads that lie there, verified; a NotFoundError where the owner gave one up."""
        for segment, extents_there in groupby(extents, key=lambda extent: extent.segment):
            path = os.path.join(self._directory, segment_name(segment))
            with _errors(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for extent in extents_there:
                    yield _payload(path, descriptor, extent)
            finally:
                os.close(descriptor)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is gone", do="it was given up") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}", do="mend the disk") from error


def _payload(path: str, descriptor: int, extent: Extent) -> memoryview:
    buffer = memoryview(pa.allocate_buffer(extent.bytes)).cast("B")
    at, read = extent.offset - extent.segment, 0
    with _errors(path):
        while read < extent.bytes and (more := os.preadv(descriptor, [buffer[read:]], at + read)):
            read += more
    frame = layout.frame_at(buffer[:read], extent.offset, extent.offset)
    if frame is None or frame.kind != layout.DATA:
        raise NotFoundError(
            f"{path} has no payload at offset {extent.offset}", do="it was given up"
        )
    return frame.payload
