"""The segments of an open log: finds them, maps them, drops and releases them."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from headrace.errors import NotFoundError
from headrace.log import format as layout
from headrace.log import segments
from headrace.log.disk import Disk
from headrace.log.segments import Extent, Segment
from headrace.settings import MIB

_ROOM_BYTES = 8 * MIB
"""A mapping leaves room for the file to grow by this much, so that a growing segment needs few.

A mapping that is held pins all its address space, and a process may hold some ten thousands.
"""


class LiveSegments:
    """Any thread may use it; only one begins segments."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._segments, self._released = segments.recover(disk)
        self._maps: dict[int, memoryview] = {}
        self._lock = threading.Lock()
        self._giving_up = threading.Lock()

    @property
    def newest(self) -> Segment | None:
        return self._segments[-1] if self._segments else None

    @property
    def released(self) -> int:
        """The log has released everything below this offset."""
        return self._released

    def listed(self, synced_end: int) -> list[Segment]:
        """Return all segments, oldest first; the last one ends where the log is synced."""
        with self._lock:
            return self._segments[:-1] + [
                Segment(newest.base, max(newest.base, synced_end)) for newest in self._segments[-1:]
            ]

    def begin(self, base: int) -> None:
        """End the newest segment at `base`, and begin the next one there."""
        with self._lock:
            if self._segments:
                self._segments[-1] = Segment(self._segments[-1].base, base)
            self._segments.append(Segment(base, base))

    def frame(self, offset: int, durable_end: int) -> layout.LogFrame:
        """Return the frame at a synced offset."""
        base, data = self._data_around(offset, durable_end)
        frame = layout.frame_at(data, base, offset)
        if frame is None:
            raise segments.damaged(self._disk, base, offset)
        return frame

    def extents(self, offsets: Iterable[int], durable_end: int) -> Iterator[Extent]:
        """Yield where the frames at synced offsets lie. Their reader verifies them."""
        base, data = 0, memoryview(b"")
        for offset in offsets:
            if not base <= offset < base + len(data):
                base, data = self._data_around(offset, durable_end)
            yield Extent(base, offset, layout.whole_frame_bytes(data, offset - base))

    def _data_around(self, offset: int, durable_end: int) -> tuple[int, memoryview]:
        """Return the base and the contents of the segment that an offset lies in."""
        base, end = self._segment_of(offset, durable_end)
        size = end - base
        data = self._maps.get(base)
        if data is None or len(data) < size:
            data = self.map(base, _ROOM_BYTES)
            with self._lock:
                # The map of a segment that was given up meanwhile would stay until the log closes.
                if any(segment.base == base for segment in self._segments):
                    self._maps[base] = data
        return base, data[:size]

    def where(self, offset: int) -> str:
        base = self._base_of(offset)
        return f"{self._disk.path(segments.segment_name(base))} at offset {offset}"

    def map(self, base: int, room: int = 0) -> memoryview:
        """Map the present contents of a segment; refuse a file that is not what its name says."""
        with segments.log_errors(self._disk):
            try:
                data = self._disk.map(segments.segment_name(base), room)
            except FileNotFoundError as error:
                with self._lock:
                    if base in (segment.base for segment in self._segments):
                        raise segments.damaged(self._disk, base, base, "no such file") from error
                raise NotFoundError(
                    f"the log has dropped the segment at {base}", do="see segments()"
                ) from error
        if not layout.is_segment_header(data, base):
            raise segments.damaged(self._disk, base, base)
        return data

    def drop(self, segment: Segment) -> None:
        with self._giving_up, segments.log_errors(self._disk):
            if segment not in self._segments[:-1]:
                raise NotFoundError(
                    f"the log has no closed segment at {segment.base}", do="see segments()"
                )
            segments.mark_dropped(self._disk, segment)
            self._forget([segment])

    def release(self, offset: int, synced_end: int) -> None:
        with self._giving_up, segments.log_errors(self._disk):
            if offset <= self._released:
                return
            base = self._base_of(offset)
            first = base + layout.SEGMENT_HEADER.size
            if not self._is_boundary(base, max(offset, first), offset, synced_end):
                raise NotFoundError(
                    f"the log has no synced frame at offset {offset}", do="see scan()"
                )
            segments.mark_released(self._disk, offset)
            self._released = offset
            self._forget([each for each in self._segments[:-1] if each.end <= offset])
            if offset > first:
                segments.punch(self._disk, base, offset)

    def _base_of(self, offset: int) -> int:
        return self._segment_of(offset, offset).base

    def _segment_of(self, offset: int, durable_end: int) -> Segment:
        """Return the segment that an offset lies in; the newest one ends where the log does."""
        with self._lock:
            index = bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1
            if index >= 0 and offset >= self._released:
                segment = self._segments[index]
                if index == len(self._segments) - 1:
                    return Segment(segment.base, durable_end)
                if offset < segment.end:
                    return segment
        raise NotFoundError(f"offset {offset} is not in the log", do="see scan()")

    def _is_boundary(self, base: int, start: int, offset: int, synced_end: int) -> bool:
        """Return True if a reader can read frames from `offset` on."""
        if offset > synced_end:
            return False
        return start >= synced_end or layout.frame_at(self.map(base), base, start) is not None

    def _forget(self, gone: list[Segment]) -> None:
        """Forget segments whose marker is durable, and remove their files."""
        with self._lock:
            for segment in gone:
                self._segments.remove(segment)
                self._maps.pop(segment.base, None)
            oldest = self._segments[0].base
        segments.remove(self._disk, gone, oldest)
