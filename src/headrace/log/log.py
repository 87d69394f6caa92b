"""The log: appenders share syncs, readers map segments.

One writer thread takes everything that is pending, writes it, syncs it once, reports it to
those who appended it, in order, and only then moves `synced_end`. Nothing is reported before
the sync. A failed write or sync fails every append that was pending and every later one, until
the log is opened again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError, NotFoundError, StorageError, UsageError
from headrace.log import format as layout
from headrace.log import segments
from headrace.log.disk import AppendFile, Disk
from headrace.log.segments import Segment
from headrace.settings import LogSettings

Done = Callable[[HeadraceError | None], None]
"""Told once, from the writer thread: None when synced, else why it never will be."""

_JOIN_BELOW_BYTES = 4096


@dataclass(slots=True)
class _Group:
    """What one write and one sync cover."""

    offset: int
    new_segment: bool
    buffers: list[Any] = field(default_factory=list)
    bytes: int = 0
    done: list[Done] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.offset + layout.GROUP_BYTES + self.bytes


class Log:
    """An append-only sequence of checksummed payloads in one directory.

    The caller sees to it that a directory has one open `Log` at a time.
    """

    def __init__(self, disk: Disk, settings: LogSettings | None = None) -> None:
        self._disk = disk
        self._settings = settings or LogSettings()
        self._segments = segments.recover(disk)
        self._maps: dict[int, memoryview] = {}
        self._file: AppendFile | None = None
        self._base = 0
        self._end = 0
        if self._segments:
            self._base, self._end = self._segments[-1]
            self._file = disk.open(segments.segment_name(self._base))
        elif gone := segments.find(disk)[1]:
            self._base = self._end = gone[-1].end
        self._synced_end = self._end
        self._sealed = False
        self._groups: deque[_Group] = deque()
        self._pending_bytes = 0
        self._syncs = 0
        self._failure: HeadraceError | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._writer = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._writer.start()

    @property
    def synced_end(self) -> int:
        """Everything below survives a power failure."""
        return self._synced_end

    @property
    def syncs(self) -> int:
        """How many groups were synced: appends divided by this is the benefit of grouping."""
        return self._syncs

    def append(self, payloads: Sequence[layout.Parts], done: Done | None = None) -> list[int]:
        """Queue payloads to be written together, and return their offsets.

        Order is kept between calls, and payloads of one call are never split between two
        segments or syncs. After a crash any prefix of what was not yet synced may be there.
        Blocks while too much is pending.
        """
        lengths = [sum(len(part) for part in parts) for parts in payloads]
        if max(lengths, default=0) > layout.PAYLOAD_BYTES_MAX:
            raise UsageError(f"a payload of {max(lengths)} bytes", do="append less at once")
        with self._lock:
            while self._pending_bytes > self._settings.pending_bytes_max and self._usable():
                self._progress.wait()
            self._check_usable()
            group = self._group()
            offsets = []
            for parts, length in zip(payloads, lengths, strict=True):
                offsets.append(group.end)
                self._put(group, parts, length)
            if done:
                group.done.append(done)
            self._end = group.end
            self._work.notify()
        return offsets

    def wait(self, offset: int) -> None:
        """Return once the frame at `offset` is synced, or raise why it never will be."""
        with self._lock:
            while self._synced_end <= offset and not self._failure:
                self._progress.wait()
            if self._synced_end <= offset and self._failure:
                raise self._failure

    def read(self, offset: int) -> memoryview:
        """The payload at an offset that `append` or `scan` gave; verified, and not a copy.

        The view stays readable for as long as it lives, unless `release_before` passes it.
        """
        segment = self._segment_of(offset)
        data = self._maps.get(segment.base)
        frame = None if data is None else layout.frame_at(data, segment.base, offset)
        if frame is None:
            data = self._disk.map(segments.segment_name(segment.base))
            self._maps[segment.base] = data
            frame = layout.frame_at(data, segment.base, offset)
        if frame is None or frame.kind != layout.DATA:
            raise segments.damaged(self._disk, segment.base, offset)
        return frame.payload

    def scan(self, offset: int = 0) -> Iterator[tuple[int, memoryview]]:
        """Every synced payload from `offset` on, with its offset; passes over what was dropped."""
        end = self._synced_end
        for base, segment_end in self.segments():
            if segment_end <= offset or base >= end:
                continue
            data = self._disk.map(segments.segment_name(base))
            position = max(offset, base + layout.SEGMENT_HEADER.size)
            stop = min(segment_end, end)
            for frame in layout.frames(data, base, position):
                if frame.offset >= stop:
                    break
                position = frame.offset + layout.frame_bytes(len(frame.payload))
                if frame.kind == layout.DATA:
                    yield frame.offset, frame.payload
            if position < stop:
                raise segments.damaged(self._disk, base, position)

    def segments(self) -> list[Segment]:
        """The live segments, oldest first; the last one still grows."""
        with self._lock:
            return self._segments[:-1] + [
                Segment(newest.base, max(newest.base, self._synced_end))
                for newest in self._segments[-1:]
            ]

    def drop(self, segment: Segment) -> None:
        """Give up a segment other than the newest. Views of it stay readable while they live."""
        with self._lock:
            if segment not in self._segments[:-1]:
                raise NotFoundError(f"no closed segment at {segment.base}", do="see segments()")
            self._segments.remove(segment)
            self._maps.pop(segment.base, None)
            oldest = self._segments[0].base
        marker = segments.dropped_name(segment)
        self._disk.create(marker).close()
        self._disk.sync()
        self._disk.unlink(segments.segment_name(segment.base))
        for gone in segments.find(self._disk)[1]:
            if gone.end <= oldest:
                self._disk.unlink(segments.dropped_name(gone))
        self._disk.sync()

    def release_before(self, offset: int) -> None:
        """Free the space below `offset`: whole segments, then blocks of the one it lies in.

        What was released reads as damage: only for a log whose readers have all passed.
        """
        for segment in self.segments()[:-1]:
            if segment.end <= offset:
                self.drop(segment)
        holding = self._segment_of(offset)
        start = holding.base + layout.SEGMENT_HEADER.size
        if offset > start:
            file = self._disk.open(segments.segment_name(holding.base))
            try:
                file.punch(layout.SEGMENT_HEADER.size, offset - start)
            finally:
                file.close()

    def close(self) -> None:
        """Write and seal what is pending, then stop. Closing twice is harmless."""
        with self._lock:
            self._closing = True
            self._work.notify()
        self._writer.join()
        if self._file:
            self._file.close()
            self._file = None

    def _segment_of(self, offset: int) -> Segment:
        with self._lock:
            for segment in reversed(self._segments):
                if segment.base <= offset:
                    return segment
        raise NotFoundError(f"offset {offset} is not in the log", do="it was released or never was")

    def _usable(self) -> bool:
        return self._failure is None and not self._closing

    def _check_usable(self) -> None:
        if self._failure:
            raise self._failure
        if self._closing:
            raise UsageError("the log is closed", do="open it again")

    def _group(self) -> _Group:
        if self._groups and self._groups[-1].bytes < self._settings.group_bytes_max:
            return self._groups[-1]
        full = self._end - self._base >= self._settings.segment_bytes
        new_segment = full or not (self._file or self._groups)
        if new_segment:
            self._base = self._end
        header = layout.SEGMENT_HEADER.size if new_segment else 0
        group = _Group(self._end + header, new_segment)
        self._groups.append(group)
        return group

    def _put(self, group: _Group, parts: layout.Parts, length: int) -> None:
        header = layout.frame_header(group.end, layout.DATA, parts, length)
        pad = bytes(layout.padding(length))
        if length < _JOIN_BELOW_BYTES:
            group.buffers.append(b"".join((header, *parts, pad)))
        else:
            group.buffers += (header, *parts, pad) if pad else (header, *parts)
        group.bytes += layout.frame_bytes(length)
        self._pending_bytes += layout.frame_bytes(length)

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            try:
                self._write(group)
            except OSError as error:
                self._fail(group, error)
                return
            for done in group.done:
                done(None)
            with self._lock:
                self._synced_end = group.end
                self._sealed = not group.bytes
                self._syncs += 1
                self._pending_bytes -= group.bytes
                self._progress.notify_all()

    def _next_group(self) -> _Group | None:
        """The next group to write: a pending one, a seal after a quiet moment, or None to stop."""
        with self._lock:
            wants_seal = not self._sealed and self._file is not None
            patience_s = self._settings.idle_seal_s if wants_seal else None
            while not self._groups and not self._closing and self._work.wait(patience_s):
                pass
            if self._groups:
                return self._groups.popleft()
            if wants_seal:
                seal = _Group(self._end, new_segment=False)
                self._end = seal.end
                return seal
            return None

    def _write(self, group: _Group) -> None:
        if group.new_segment:
            self._begin_segment(group.offset - layout.SEGMENT_HEADER.size)
        assert self._file is not None
        self._file.write([layout.group_frame(group.offset, self._synced_end), *group.buffers])
        self._file.sync()

    def _begin_segment(self, base: int) -> None:
        """The new file and its name are on the disk before anything is written to it."""
        if self._file:
            self._file.close()
            self._file = None
        self._file = self._disk.create(segments.segment_name(base))
        self._file.write([layout.segment_header(base)])
        self._file.sync()
        self._disk.sync()
        with self._lock:
            if self._segments:
                self._segments[-1] = Segment(self._segments[-1].base, base)
            self._segments.append(Segment(base, base))

    def _fail(self, group: _Group, error: OSError) -> None:
        """Nothing pending was acknowledged, so cut it: a failed sync may have lost any of it."""
        failure = StorageError(
            f"{self._disk.path('')}: {error.strerror or error}; the log takes no more appends",
            do="free space or mend the disk, then open it again",
        )
        cut = self._cut_unsynced()
        with self._lock:
            self._failure = failure
            refused = [group, *self._groups]
            self._groups.clear()
            self._progress.notify_all()
        for each in refused:
            for done in each.done:
                done(failure)
        if cut:
            failure.add_note(f"the unsynced tail could not be cut: {cut}")

    def _cut_unsynced(self) -> OSError | None:
        newest = self._segments[-1].base if self._segments else None
        if self._file is None or newest is None or newest > self._synced_end:
            return None
        try:
            self._file.truncate(max(self._synced_end - newest, layout.SEGMENT_HEADER.size))
        except OSError as error:
            return error
        return None
