"""Files of lines, piece by piece."""

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
    """Whole lines of the file, in chunks of about `chunk_bytes`.

    Only a line that is longer than `line_bytes_max` is ever cut, for the reader to refuse it.
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
    """Up to `size` bytes, as `read` gives them; but Ctrl-C is noticed between any two pieces."""
    pieces = []
    while size and (piece := file.read1(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
