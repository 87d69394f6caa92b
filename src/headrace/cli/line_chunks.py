"""Reads a file of lines in chunks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from headrace.settings import MIB

CHUNK_BYTES = 4 * MIB


class Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class Chunk(NamedTuple):
    lines_before: int
    data: bytes


def chunks(file: Readable, line_bytes_max: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield whole lines of the file, in chunks of about `chunk_bytes`.

    It splits only a line longer than `line_bytes_max`, which the caller then refuses.
    """
    lines_before, rest = 0, b""
    while data := _read(file, chunk_bytes):
        end = data.rfind(b"\n") + 1
        if not end and len(rest) + len(data) > line_bytes_max:
            end = len(data)
        if not end:
            rest += data
            continue
        whole, rest = rest + data[:end], data[end:]
        yield Chunk(lines_before, whole)
        lines_before += whole.count(b"\n")
    if rest:
        yield Chunk(lines_before, rest)


def _read(file: Readable, size: int) -> bytes:
    """Read up to `size` bytes piece by piece, so that Ctrl-C takes effect between two pieces."""
    pieces = []
    while size and (piece := file.read1(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
