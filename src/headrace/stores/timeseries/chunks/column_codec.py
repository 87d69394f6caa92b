"""Integers as few bytes: the least is taken off, high bytes go together, then zstd. Pure.

A column is stored as

    form     u8    0: plain, 1: zstd
    width    u8    bytes of each integer: 0 (all are the same), 1, 2, 4 or 8
    base     i64   the least
    length   u32   of the bytes that follow

All bytes of one significance stand together: the high ones are mostly equal, and cost nothing.
"""

from __future__ import annotations

import struct
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_HEADER = struct.Struct("<BBqI")
_PLAIN, _ZSTD = 0, 1
_ZSTD_LEAST_BYTES = 64
"""zstd does not pay for fewer bytes."""

Ints = npt.NDArray[np.int64]


def put_column(pieces: list[bytes], column: Ints) -> None:
    """Append the column to the pieces of a chunk."""
    if not len(column):
        pieces.append(_HEADER.pack(_PLAIN, 0, 0, 0))
        return
    base = column.min()
    # Both wrap around at 64 bits, so the difference is right even between the extremes.
    above = column.view(np.uint64) - base.view(np.uint64)
    width = _width(int(above.max()))
    raw = _shuffle(above, width)
    form = _PLAIN
    if len(raw) >= _ZSTD_LEAST_BYTES:
        packed = cast(bytes, pa.compress(raw, codec="zstd", asbytes=True))
        if len(packed) < len(raw):
            form, raw = _ZSTD, packed
    pieces.append(_HEADER.pack(form, width, int(base), len(raw)))
    pieces.append(raw)


def take_column(stored: memoryview, position: int, count: int) -> tuple[Ints, int]:
    """Return the column of `count` integers that begins there, and where it ends."""
    form, width, base, length = _HEADER.unpack_from(stored, position)
    begin = position + _HEADER.size
    end = begin + length
    if not width:
        return np.full(count, base, dtype=np.int64), end
    raw: memoryview | bytes = stored[begin:end]
    if form == _ZSTD:
        raw = cast(bytes, pa.decompress(raw, count * width, codec="zstd", asbytes=True))
    above = _unshuffle(raw, width, count)
    if base:
        above += np.int64(base).view(np.uint64)
    return above.view(np.int64), end


def _width(most: int) -> int:
    if not most:
        return 0
    return next(width for width in (1, 2, 4, 8) if most < 1 << 8 * width)


def _shuffle(above: npt.NDArray[np.uint64], width: int) -> bytes:
    if not width:
        return b""
    narrow = above.astype(f"<u{width}")
    return narrow.view(np.uint8).reshape(-1, width).T.tobytes() if width > 1 else narrow.tobytes()


def _unshuffle(raw: memoryview | bytes, width: int, count: int) -> npt.NDArray[np.uint64]:
    stored = np.frombuffer(raw, dtype=np.uint8)
    if width == 1:
        return stored.astype(np.uint64)
    joined = np.empty((count, width), dtype=np.uint8)
    joined[...] = stored.reshape(width, count).T
    return joined.view(f"<u{width}").reshape(count).astype(np.uint64)
