"""The bytes of a segment file. Only this module knows their layout.

    segment = header(32) frame*
    frame   = length:u32 kind:u8 zero:u24 checksum:u64 payload zero-padding to 8 bytes

A frame's offset is its position in the whole log: the segment's base plus its position in the
file. A segment is named by its base and ends where the next one begins. The checksum is xxh3-64 of
the payload, seeded with offset and kind, so a frame is valid only at its own offset. Payloads begin
at a multiple of eight, so readers can use Arrow buffers in place.

A GROUP frame opens each group of frames that the log writes and syncs together. The log had
acknowledged everything below its `synced_through` when it wrote the group. A group without data is
a seal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

SEGMENT_HEADER = struct.Struct("<8sIIQQ")
FRAME_HEADER = struct.Struct("<IB3xQ")
GROUP_PAYLOAD = struct.Struct("<8sQ")

SEGMENT_MAGIC = b"HEADRACE"
FORMAT_VERSION = 1
GROUP_MAGIC = b"\xd7HRGROUP"

GROUP = 1
DATA = 2

GROUP_BYTES = FRAME_HEADER.size + GROUP_PAYLOAD.size
PAYLOAD_BYTES_MAX = (1 << 32) - 1

Parts = Sequence[Any]
"""The consecutive buffers of one payload: a small header and a large body need no joining."""


class LogFrame(NamedTuple):
    offset: int
    kind: int
    payload: memoryview


def padding(length: int) -> int:
    return -length % 8


def frame_bytes(payload_bytes: int) -> int:
    """Return how many bytes of the log a frame takes."""
    return FRAME_HEADER.size + payload_bytes + padding(payload_bytes)


def whole_frame_bytes(data: memoryview, start: int) -> int:
    """Return how many bytes the frame at `start` takes, according to its header."""
    return frame_bytes(FRAME_HEADER.unpack_from(data, start)[0])


def segment_header(base: int) -> bytes:
    head = SEGMENT_HEADER.pack(SEGMENT_MAGIC, FORMAT_VERSION, 0, base, 0)[:-8]
    return head + xxh3_64_intdigest(head).to_bytes(8, "little")


def is_segment_header(data: memoryview, base: int) -> bool:
    return bytes(data[: SEGMENT_HEADER.size]) == segment_header(base)


class SegmentHeader(NamedTuple):
    version: int
    base: int


def whole_segment_header(data: memoryview) -> SegmentHeader | None:
    """Return an undamaged header of any version and base, or None."""
    if len(data) < SEGMENT_HEADER.size:
        return None
    magic, version, _, base, checksum = SEGMENT_HEADER.unpack_from(data)
    if magic != SEGMENT_MAGIC or xxh3_64_intdigest(data[: SEGMENT_HEADER.size - 8]) != checksum:
        return None
    return SegmentHeader(version, base)


def _seed(offset: int, kind: int) -> int:
    return (offset << 8) | kind


def frame_header(offset: int, kind: int, parts: Parts, length: int) -> bytes:
    digest = xxh3_64(seed=_seed(offset, kind))
    for part in parts:
        digest.update(part)
    return FRAME_HEADER.pack(length, kind, digest.intdigest())


def group_frame(offset: int, synced_through: int) -> bytes:
    payload = GROUP_PAYLOAD.pack(GROUP_MAGIC, synced_through)
    return frame_header(offset, GROUP, (payload,), len(payload)) + payload


def frame_at(data: memoryview, base: int, offset: int) -> LogFrame | None:
    """Return the whole, undamaged frame at `offset`, or None.

    `data` is the file of the segment `base`.
    """
    start = offset - base
    body = start + FRAME_HEADER.size
    if body > len(data):
        return None
    length, kind, checksum = FRAME_HEADER.unpack_from(data, start)
    end = body + length
    payload = data[body:end]
    pad = padding(length)
    if (
        kind not in (GROUP, DATA)
        or end + pad > len(data)
        or any(data[start + 5 : start + 8])
        or any(data[end : end + pad])
        or xxh3_64_intdigest(payload, _seed(offset, kind)) != checksum
    ):
        return None
    return LogFrame(offset, kind, payload)


def frames(data: memoryview, base: int, offset: int) -> Iterator[LogFrame]:
    """Yield whole frames from `offset` on, up to the first position that holds none."""
    while (frame := frame_at(data, base, offset)) is not None:
        yield frame
        offset += frame_bytes(len(frame.payload))


def synced_through(frame: LogFrame) -> int:
    """Return the offset below which everything was acknowledged before this GROUP frame."""
    _, through = GROUP_PAYLOAD.unpack(frame.payload)
    return int(through)


def proof_of_sync(data: memoryview, base: int, damaged: int) -> LogFrame | None:
    """Return a later group that proves that the damaged offset was once acknowledged.

    Its `synced_through` may equal the damaged offset if that is the segment's header: the log syncs
    a header before the first group, but acknowledges nothing for it.
    """
    haystack = bytes(data[damaged - base :])
    found = haystack.find(GROUP_MAGIC)
    while found >= 0:
        candidate = damaged + found - FRAME_HEADER.size
        if candidate > damaged:
            frame = frame_at(data, base, candidate)
            if frame and frame.kind == GROUP and synced_through(frame) >= damaged:
                return frame
        found = haystack.find(GROUP_MAGIC, found + 1)
    return None
