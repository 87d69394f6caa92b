"""The segment files of a log, and how opening the log repairs them.

A segment is named by its base offset. Segments follow each other without a gap, except where a
`BASE-END.dropped` marker says that the log dropped a segment. Everything below the offset of the
`OFFSET.released` marker is given up too, and may read as zeros. The log makes a marker durable
before it removes anything that the marker names, and removes the marker only when nothing that it
names can come back.

Only the newest segment can have a torn tail: the log creates a segment after it has synced
everything before.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple

from headrace.errors import DataError, VersionError
from headrace.files import storage_errors
from headrace.log import format as layout
from headrace.log.disk import Disk

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_DROPPED_NAME = re.compile(r"(\d{20})-(\d{20})\.dropped")
_RELEASED_NAME = re.compile(r"(\d{20})\.released")


class Segment(NamedTuple):
    base: int
    end: int


class Extent(NamedTuple):
    """Where a frame lies in the files of a log."""

    segment: int
    """The base of its segment."""
    offset: int
    bytes: int


class LogDirectory(NamedTuple):
    """The contents of a log's directory; live segments end where their files end."""

    live: list[Segment]
    dropped: list[Segment]
    released: int


def segment_name(base: int) -> str:
    return f"{base:020d}.log"


def dropped_name(segment: Segment) -> str:
    return f"{segment.base:020d}-{segment.end:020d}.dropped"


def released_name(offset: int) -> str:
    return f"{offset:020d}.released"


def find(disk: Disk) -> LogDirectory:
    live, dropped, released = [], [], 0
    for name in disk.names():
        if match := _SEGMENT_NAME.fullmatch(name):
            base = int(match[1])
            live.append(Segment(base, base + len(disk.map(name))))
        elif match := _DROPPED_NAME.fullmatch(name):
            dropped.append(Segment(int(match[1]), int(match[2])))
        elif match := _RELEASED_NAME.fullmatch(name):
            released = max(released, int(match[1]))
    return LogDirectory(sorted(live), sorted(dropped), released)


def recover(disk: Disk) -> tuple[list[Segment], int]:
    """Repair what a crash may leave; refuse any other damage before changing anything.

    Returns the live segments, and the offset below which everything was released. Everything in
    the segments is on the disk afterwards: a frame that was written but not acknowledged when the
    process died may survive, and then it survives for good.
    """
    found = find(disk)
    begun = [each for each in found.live[-1:] if _is_unfinished(disk, found)]
    finished = found.live[: len(found.live) - len(begun)]
    kept = [each for each in finished if each is finished[-1] or not _is_given_up(each, found)]
    _check_continuity(disk, kept, found)
    if kept:
        newest = kept[-1]
        end = _whole_end(disk, newest, found.released)
        if begun and end < newest.end:
            raise damaged(disk, newest.base, end, f"the segment at {newest.end} was begun after it")
        kept[-1] = Segment(newest.base, end)
        _cut(disk, newest, end)
    for gone in {each.base for each in found.live} - {each.base for each in kept}:
        disk.unlink(segment_name(gone))
    if found.live:
        disk.sync()
    return kept, found.released


def mark_dropped(disk: Disk, segment: Segment) -> None:
    _mark(disk, dropped_name(segment))


def mark_released(disk: Disk, offset: int) -> None:
    _mark(disk, released_name(offset))


def remove(disk: Disk, gone: list[Segment], oldest: int) -> None:
    """Unlink segments whose marker is durable, then the markers that are no longer needed."""
    for segment in gone:
        disk.unlink(segment_name(segment.base))
    disk.sync()
    found = find(disk)
    present = {segment.base for segment in found.live}
    for segment in found.dropped:
        if segment.end <= oldest and segment.base not in present:
            disk.unlink(dropped_name(segment))
    for name in disk.names():
        if _RELEASED_NAME.fullmatch(name) and name != released_name(found.released):
            disk.unlink(name)


def damaged(disk: Disk, base: int, offset: int, why: str = "") -> DataError:
    because = f" ({why})" if why else ""
    return DataError(
        f"{disk.path(segment_name(base))} is damaged at offset {offset}"
        f" (byte {offset - base}){because}",
        do="restore this file from a backup or a replica; nothing was changed",
    )


def punch(disk: Disk, base: int, offset: int) -> None:
    """Free the blocks of a segment between its header and `offset`."""
    file = disk.open(segment_name(base))
    try:
        file.punch(layout.SEGMENT_HEADER.size, offset - base - layout.SEGMENT_HEADER.size)
    finally:
        file.close()


def log_errors(disk: Disk) -> AbstractContextManager[None]:
    return storage_errors(disk.path(""), do="mend the disk, then try again")


def _mark(disk: Disk, name: str) -> None:
    if name not in disk.names():
        disk.create(name).close()
    disk.sync()


def _is_unfinished(disk: Disk, found: LogDirectory) -> bool:
    """Return True if a crash left the newest segment without its header, and so without frames."""
    base = found.live[-1].base
    data = disk.map(segment_name(base))
    if layout.is_segment_header(data, base):
        return False
    _refuse_foreign(disk, data, base)
    if proof := layout.proof_of_sync(data, base, base):
        raise damaged(disk, base, base, f"the group at {proof.offset} was written after it")
    # The log gives up a segment only after the header and name of the next are on the disk.
    if found.released > base or (base and base not in (each.end for each in found.live[:-1])):
        raise damaged(disk, base, base, "its predecessor is gone, so it had been finished")
    return True


def _is_given_up(segment: Segment, found: LogDirectory) -> bool:
    return segment.end <= found.released or segment in found.dropped


def _check_continuity(disk: Disk, kept: list[Segment], found: LogDirectory) -> None:
    """Raise DataError if a segment is missing.

    Markers below the oldest segment prove nothing: some of them may be removed already.
    """
    oldest = kept[0].base if kept else 0
    known = sorted(kept + [gone for gone in found.dropped if gone.base >= oldest])
    for before, after in pairwise(known):
        if before.end != after.base:
            raise damaged(disk, before.base, before.end, f"the next segment begins at {after.base}")
    given_up = max([found.released, *(gone.end for gone in found.dropped)])
    if given_up and (not kept or kept[-1].end < given_up):
        raise damaged(disk, given_up, given_up, "the newest segment is missing")


def _whole_end(disk: Disk, newest: Segment, released: int) -> int:
    """Return where the whole frames of the newest segment end and a torn tail may begin."""
    base = newest.base
    data = disk.map(segment_name(base))
    end = max(base + layout.SEGMENT_HEADER.size, released)
    for frame in layout.frames(data, base, end):
        end = frame.offset + layout.frame_bytes(len(frame.payload))
    if end < newest.end and (proof := layout.proof_of_sync(data, base, end)):
        raise damaged(disk, base, end, f"the group at {proof.offset} was written after it")
    return end


def _refuse_foreign(disk: Disk, data: memoryview, base: int) -> None:
    """Raise an error for a whole header of another version or segment: it is no torn one."""
    header = layout.whole_segment_header(data)
    if header is None:
        return
    if header.version != layout.FORMAT_VERSION:
        raise VersionError(
            f"{disk.path(segment_name(base))} has format version {header.version},"
            f" and this Headrace reads {layout.FORMAT_VERSION}",
            do="open it with the version of Headrace that wrote it",
        )
    raise damaged(disk, base, base, f"it is the segment of offset {header.base}")


def _cut(disk: Disk, segment: Segment, end: int) -> None:
    file = disk.open(segment_name(segment.base))
    try:
        if end < segment.end:
            file.truncate(end - segment.base)
        file.sync()
    finally:
        file.close()
