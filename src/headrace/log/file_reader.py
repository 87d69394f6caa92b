"""Reads the files of a log that another process of this machine writes.

The log's owner tells where payloads lie. The reader copies them into memory and maps nothing: a
mapping would show zeros where the owner releases space, and would end the process where the owner
truncates a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from headrace.errors import NotFoundError, StorageError
from headrace.log import format as layout
from headrace.log.segments import Extent, segment_name
from headrace.settings import KIB

_SMALL_BYTES = 4 * KIB
_GAP_BYTES = 8 * KIB
_RUN_BYTES_MAX = 256 * KIB
"""Small payloads that lie at most `_GAP_BYTES` apart are read at once, up to `_RUN_BYTES_MAX`:
reading what lies between them costs less than another call of the kernel."""

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
                for run in _runs(extents_there):
                    yield from _payloads(path, descriptor, run)
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


def _runs(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    """Divide the extents of a segment into those that one read brings."""
    run: list[Extent] = []
    begin = end = 0
    for extent in extents:
        after = extent.offset + extent.bytes
        if not (
            run
            and max(run[0].bytes, extent.bytes) <= _SMALL_BYTES
            and end <= extent.offset <= end + _GAP_BYTES
            and after - begin <= _RUN_BYTES_MAX
        ):
            if run:
                yield run
            run, begin = [], extent.offset
        run.append(extent)
        end = after
    if run:
        yield run


def _payloads(path: str, descriptor: int, run: Sequence[Extent]) -> Iterator[memoryview]:
    begin = run[0].offset
    size = run[-1].offset + run[-1].bytes - begin
    buffer = memoryview(pa.allocate_buffer(size)).cast("B")
    start, read = begin - run[0].segment, 0
    with _errors(path):
        while read < size and (more := os.preadv(descriptor, [buffer[read:]], start + read)):
            read += more
    for extent in run:
        end = extent.offset + extent.bytes - begin
        frame = layout.frame_at(buffer[: min(read, end)], begin, extent.offset)
        if frame is None or frame.kind != layout.DATA:
            raise NotFoundError(f"{path} has no payload at offset {extent.offset}", do=_ASK_OWNER)
        # A small payload must not keep what lies between it and others.
        yield frame.payload if len(run) == 1 else memoryview(bytes(frame.payload))
