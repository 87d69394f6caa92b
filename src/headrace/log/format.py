"""The bytes of a segment file. Everything about their layout is in this file.

    segment = header(32) frame*
    frame   = length:u32 kind:u8 zero:u24 checksum:u64 payload zero-padding to 8 bytes

A frame's offset is its position in the whole log: the segment's base plus its position in the
file, so a segment is named by its base and ends where the next one begins. The checksum is
xxh3-64 of the payload, seeded with offset and kind: a frame that is valid somewhere else is not
valid here. Payloads begin at a multiple of eight, so Arrow buffers in them can be used in place.

A GROUP frame opens each group that was written and synced together; everything below its
`synced_through` had been acknowledged when it was written. A group without data is a seal.
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
"""A payload as buffers that follow each other: saves joining a small header and a large body."""


class LogFrame(NamedTuple):
    offset: int
    kind: int
    payload: memoryview


def padding(length: int) -> int:
    return -length % 8


def frame_bytes(payload_bytes: int) -> int:
    """How much of the log a frame takes."""
    return FRAME_HEADER.size + payload_bytes + padding(payload_bytes)


def whole_frame_bytes(data: memoryview, start: int) -> int:
    """How much the frame takes that starts there, as its header says."""
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
    """What an undamaged header says, of whatever version and base; None if there is none."""
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
    """The whole, undamaged frame at `offset`, or None. `data` is the file of segment `base`."""
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
    """Whole frames from `offset` on; ends at the first position that does not hold one."""
    while (frame := frame_at(data, base, offset)) is not None:
        yield frame
        offset += frame_bytes(len(frame.payload))


def synced_through(frame: LogFrame) -> int:
    """What a GROUP frame says was acknowledged before it."""
    _, through = GROUP_PAYLOAD.unpack(frame.payload)
    return int(through)


def proof_of_sync(data: memoryview, base: int, damaged: int) -> LogFrame | None:
    """A later group that proves the damaged offset was once acknowledged.

    Its `synced_through` is the damaged offset itself where that is the segment's header: it is
    synced, but never acknowledged, before the first group.
    """
    haystack = bytes(data[damaged - base :])
    at = haystack.find(GROUP_MAGIC)
    while at >= 0:
        candidate = damaged + at - FRAME_HEADER.size
        if candidate > damaged:
            frame = frame_at(data, base, candidate)
            if frame and frame.kind == GROUP and synced_through(frame) >= damaged:
                return frame
        at = haystack.find(GROUP_MAGIC, at + 1)
    return None
