"""Reads the files of a log that another process of this machine writes.

The log's owner tells where payloads lie. The reader copies them into memory and maps nothing: a
mapping would show zeros where the owner releases space, and would end the process where the owner
truncates a file.
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

_ASK_OWNER = "ask the owner of the log where the payload is now"


class LogFiles:
    """The files of one log."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)

    def read(self, extents: Iterable[Extent]) -> Iterator[memoryview]:
        """Yield the verified payloads. Raises NotFoundError if the owner gave one up."""
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
        raise NotFoundError(f"{path} is gone", do=_ASK_OWNER) from error
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}", do="mend the disk"
        ) from error


def _payload(path: str, descriptor: int, extent: Extent) -> memoryview:
    buffer = memoryview(pa.allocate_buffer(extent.bytes)).cast("B")
    start, read = extent.offset - extent.segment, 0
    with _errors(path):
        while read < extent.bytes and (
            more := os.preadv(descriptor, [buffer[read:]], start + read)
        ):
            read += more
    frame = layout.frame_at(buffer[:read], extent.offset, extent.offset)
    if frame is None or frame.kind != layout.DATA:
        raise NotFoundError(f"{path} has no payload at offset {extent.offset}", do=_ASK_OWNER)
    return frame.payload
