"""Which segment files there are, and what opening a log does to them.

A segment is named by its base offset. Segments follow each other without a gap, except where a
`BASE-END.dropped` marker says that what lay there was given up on purpose. Only the newest
segment can have a torn tail: the next one is created after everything before it was synced.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from headrace.errors import DataError
from headrace.log import format as layout
from headrace.log.disk import Disk

_SEGMENT = ".log"
_DROPPED = ".dropped"
_DIGITS = 20


class Segment(NamedTuple):
    base: int
    end: int


def segment_name(base: int) -> str:
    return f"{base:0{_DIGITS}d}{_SEGMENT}"


def dropped_name(segment: Segment) -> str:
    return f"{segment.base:0{_DIGITS}d}-{segment.end:0{_DIGITS}d}{_DROPPED}"


def find(disk: Disk) -> tuple[list[Segment], list[Segment]]:
    """The segments and the dropped ones, by base; the ends are those of the files."""
    live, dropped = [], []
    for name in disk.names():
        if name.endswith(_DROPPED):
            base, _, end = name.removesuffix(_DROPPED).partition("-")
            dropped.append(Segment(int(base), int(end)))
        elif name.endswith(_SEGMENT):
            base_offset = int(name.removesuffix(_SEGMENT))
            live.append(Segment(base_offset, base_offset + len(disk.map(name))))
    return sorted(live), sorted(dropped)


def recover(disk: Disk) -> list[Segment]:
    """Repair what a crash may leave, refuse everything else, and return the live segments.

    Afterwards everything in them is on the disk: frames that were written but not yet
    acknowledged when the process died may be kept, and then they are kept for good.
    """
    live, dropped = find(disk)
    for gone in dropped:
        if gone in live:
            disk.unlink(segment_name(gone.base))
            live.remove(gone)
    if live:
        newest = live.pop()
        end = _whole_end(disk, newest)
        if end == newest.base:
            disk.unlink(segment_name(newest.base))
        else:
            _cut(disk, newest, end)
            live.append(Segment(newest.base, end))
    if live or dropped:
        disk.sync()
    _check_continuity(disk, live, dropped)
    return live


def _whole_end(disk: Disk, segment: Segment) -> int:
    """Where the whole frames of the newest segment end; its base if not even its header is."""
    name = segment_name(segment.base)
    data = disk.map(name)
    end = segment.base
    if layout.is_segment_header(data, segment.base):
        end += layout.SEGMENT_HEADER.size
        for frame in layout.frames(data, segment.base, end):
            end = frame.offset + layout.frame_bytes(len(frame.payload))
    if end < segment.end and (proof := layout.proof_of_sync(data, segment.base, end)):
        raise damaged(disk, segment.base, end, f"the group at {proof.offset} was written after it")
    return end


def _cut(disk: Disk, segment: Segment, end: int) -> None:
    file = disk.open(segment_name(segment.base))
    try:
        if end < segment.end:
            file.truncate(end - segment.base)
        file.sync()
    finally:
        file.close()


def _check_continuity(disk: Disk, live: list[Segment], dropped: list[Segment]) -> None:
    known = sorted(live + dropped)
    for before, after in pairwise(known):
        if before.end != after.base:
            raise damaged(disk, before.base, before.end, f"the next segment begins at {after.base}")


def damaged(disk: Disk, base: int, offset: int, why: str = "") -> DataError:
    because = f" ({why})" if why else ""
    return DataError(
        f"{disk.path(segment_name(base))}: damaged at offset {offset}"
        f" (byte {offset - base}){because}",
        do="restore this file from a backup or a replica; nothing was changed",
    )
