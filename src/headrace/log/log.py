"""The log: appenders share syncs, readers map segments.

One writer thread takes everything that is pending, writes it, syncs it once, reports it in order to
those who appended it, and only then moves `synced_end`. It reports nothing before the sync. A
failed write or sync fails every pending append and every later one, until the log is opened again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from headrace.errors import (
    HeadraceError,
    InDoubtError,
    NotFoundError,
    StorageError,
    UsageError,
)
from headrace.log import format as layout
from headrace.log import segments
from headrace.log.disk import AppendFile, Disk
from headrace.log.live_segments import LiveSegments
from headrace.log.segments import Extent, Segment
from headrace.log.sync_group import Callback, OnSynced, SyncGroup, call_all
from headrace.settings import LogSettings


class Log:
    """An append-only sequence of checksummed payloads in one directory.

    The caller makes sure that a directory has one open `Log` at a time.
    """

    def __init__(self, disk: Disk, settings: LogSettings | None = None) -> None:
        self._disk = disk
        self._settings = settings or LogSettings()
        self._file: AppendFile | None = None
        self._base: int | None = None
        self._end = 0
        with segments.log_errors(disk):
            self._live = LiveSegments(disk)
            if newest := self._live.newest:
                self._base, self._end = newest
                self._file = disk.open(segments.segment_name(newest.base))
        self._durable_end = self._end
        self._synced_end = self._end
        self._sealed = False
        self._groups: deque[SyncGroup] = deque()
        self._pending_bytes = 0
        self._syncs = 0
        self._failure: HeadraceError | None = None
        self._interruption: BaseException | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._writer = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._writer.start()

    @property
    def synced_end(self) -> int:
        """Everything below this offset survives a power failure."""
        return self._synced_end

    @property
    def syncs(self) -> int:
        """How many groups the log has synced. Appends per sync is the benefit of grouping."""
        return self._syncs

    @property
    def pending(self) -> bool:
        """True if an append is not synced and reported yet, or never will be."""
        return self._pending_bytes > 0

    def append(self, payloads: Sequence[layout.Parts], done: OnSynced | None = None) -> list[int]:
        """Queue payloads for the writer thread, and return their offsets.

        The log keeps the order of calls, and never splits the payloads of one call between two
        segments or syncs. After a crash it may hold any prefix of what was not yet synced. The call
        blocks while too much is pending. The buffers must not change until `done` is called.
        """
        views = [[memoryview(part).cast("B") for part in parts] for parts in payloads]
        lengths = [sum(len(view) for view in payload) for payload in views]
        if max(lengths, default=0) > layout.PAYLOAD_BYTES_MAX:
            raise UsageError(
                f"a payload has {max(lengths)} bytes, and the log takes {layout.PAYLOAD_BYTES_MAX}",
                do="append less at once",
            )
        with self._lock:
            while self._pending_bytes > self._settings.pending_bytes_max and self._usable():
                self._progress.wait()
            self._check_usable()
            try:
                offsets = self._add(views, lengths, done)
            except BaseException as error:
                # After Ctrl-C, say, a group may hold half of the payloads: it must not be written.
                self._interruption = error
                raise
            finally:
                self._work.notify()
        return offsets

    def _add(
        self, views: list[list[memoryview]], lengths: list[int], done: OnSynced | None
    ) -> list[int]:
        group = self._group()
        held = group.bytes
        offsets = [group.add(*payload) for payload in zip(views, lengths, strict=True)]
        if done:
            group.done.append(partial(done, offsets))
        self._pending_bytes += group.bytes - held
        self._end = group.end
        return offsets

    def wait(self, offset: int) -> None:
        """Return once the frame at `offset` is synced, or raise the reason why it never will be."""
        with self._lock:
            if offset >= self._end:
                raise NotFoundError(f"offset {offset} is not in the log", do="append it first")
            while self._synced_end <= offset and not self._failure:
                self._progress.wait()
            if self._synced_end <= offset:
                self._check_usable()

    def drain(self) -> int:
        """Wait until everything is synced and reported, and return where the log ends."""
        with self._lock:
            end = self._end
            while self._synced_end < end and not self._failure:
                self._progress.wait()
            self._check_usable()
            return end

    def read(self, offset: int) -> memoryview:
        """Return the verified payload at an offset that `append` or `scan` gave; not a copy.

        The view stays readable while it lives, unless `release_before` passes it.
        """
        if offset >= self._durable_end:
            raise NotFoundError(f"offset {offset} is not synced", do="wait for it")
        frame = self._live.frame(offset, self._durable_end)
        if frame.kind != layout.DATA:
            raise NotFoundError(f"the log has no payload at offset {offset}", do="see scan()")
        return frame.payload

    def extents(self, offsets: Iterable[int]) -> Iterator[Extent]:
        """Yield where the files hold synced payloads, for `LogFiles` in another process.

        Raises NotFoundError at the first that is not there. What is given up meanwhile may still be
        among them: `LogFiles` notices.
        """
        return self._live.extents(offsets, self._durable_end)

    def where(self, offset: int) -> str:
        """Return the file of an offset, for error messages."""
        return self._live.where(offset)

    def scan(self, offset: int = 0) -> Iterator[tuple[int, memoryview]]:
        """Yield every synced payload from `offset` on with its offset, except what was given up."""
        end = self._synced_end
        start = max(offset, self._live.released)
        for base, segment_end in self.segments():
            stop = min(segment_end, end)
            position = max(start, base + layout.SEGMENT_HEADER.size)
            if position >= stop:
                continue
            try:
                data = self._live.map(base)[: stop - base]
            except NotFoundError:
                continue
            for frame in layout.frames(data, base, position):
                position = frame.offset + layout.frame_bytes(len(frame.payload))
                if frame.kind == layout.DATA:
                    yield frame.offset, frame.payload
            if position < stop:
                raise segments.damaged(self._disk, base, position)

    def segments(self) -> list[Segment]:
        """Return the live segments, oldest first; the last one still grows."""
        return self._live.listed(self._synced_end)

    def drop(self, segment: Segment) -> None:
        """Drop a segment other than the newest. Views of it stay readable while they live."""
        self._live.drop(segment)

    def release_before(self, offset: int) -> None:
        """Free the space below `offset`: whole segments, then blocks of its own segment.

        `offset` is one that `append` or `scan` gave, or `synced_end`. Views of released space read
        as zeros, so call this only when all readers have passed the offset.
        """
        self._live.release(offset, self._synced_end)

    def close(self) -> None:
        """Write what is pending, and a seal if the log has seals, then stop. Repeating is harmless.

        The log reports what it cannot write to those who appended it, as always.
        """
        with self._lock:
            self._closing = True
            self._work.notify()
        self._writer.join()
        with self._lock:
            file, self._file = self._file, None
        if file:
            file.close()

    def _usable(self) -> bool:
        return self._failure is None and not self._closing

    def _check_usable(self) -> None:
        if self._failure:
            raise self._failure.with_traceback(None)
        if self._interruption:
            raise StorageError(
                f"{self._disk.path('')}: an append was interrupted", do="open the log again"
            )
        if self._closing:
            raise UsageError("the log is closed", do="open it again")

    def _group(self) -> SyncGroup:
        """Return the group that the next append joins."""
        if self._groups and self._groups[-1].bytes < self._settings.group_bytes_max:
            return self._groups[-1]
        new_segment = self._base is None or self._end - self._base >= self._settings.segment_bytes
        if new_segment:
            self._base = self._end
        header = layout.SEGMENT_HEADER.size if new_segment else 0
        group = SyncGroup(self._end + header, new_segment)
        self._groups.append(group)
        return group

    def _run(self) -> None:
        unreported: list[Callback] = []
        try:
            while (group := self._next_group()) is not None:
                unreported = group.done
                self._write(group)
                unreported = []
                self._report(group)
        except BaseException as error:
            self._fail(unreported, error)
            if not isinstance(error, OSError):
                raise

    def _next_group(self) -> SyncGroup | None:
        """Wait for a pending group; return a seal after a quiet moment, or None to stop."""
        with self._lock:
            idle_s = self._settings.idle_seal_s
            wants_seal = not self._sealed and self._file is not None and idle_s is not None
            patience_s = idle_s if wants_seal else None
            while not self._groups and not self._closing and self._work.wait(patience_s):
                pass
            if self._interruption:
                raise OSError(f"an append was interrupted ({self._interruption!r})")
            if self._groups:
                return self._groups.popleft()
            if wants_seal:
                seal = SyncGroup(self._end, new_segment=False)
                self._end = seal.end
                return seal
            return None

    def _write(self, group: SyncGroup) -> None:
        if group.new_segment:
            self._begin_segment(group.offset - layout.SEGMENT_HEADER.size)
        assert self._file is not None
        self._file.write([layout.group_frame(group.offset, self._synced_end), *group.buffers])
        if self._settings.sync:
            self._file.sync()

    def _begin_segment(self, base: int) -> None:
        """Put the new file and its name on the disk, before the log writes a group to it."""
        if self._file:
            self._file.close()
            self._file = None
        file = self._disk.create(segments.segment_name(base))
        try:
            file.write([layout.segment_header(base)])
            file.sync()
            self._disk.sync()
        except OSError:
            file.close()
            # After a failed sync the header can be readable and still not be on the disk.
            with suppress(OSError):
                self._disk.unlink(segments.segment_name(base))
            raise
        self._file = file
        self._live.begin(base)

    def _report(self, group: SyncGroup) -> None:
        self._durable_end = group.end
        try:
            call_all(group.done, None)
        finally:
            with self._lock:
                self._synced_end = group.end
                self._sealed = not group.bytes
                self._syncs += 1
                self._pending_bytes -= group.bytes
                self._progress.notify_all()

    def _fail(self, unreported: list[Callback], error: BaseException) -> None:
        """Cut what is pending and fail it: a failed sync may have lost any part of it."""
        reason = error.strerror or error if isinstance(error, OSError) else repr(error)
        uncut = self._cut_unsynced()
        failure = StorageError(
            f"{self._disk.path('')}: {reason}, the log takes no more appends"
            + (f", and what was not synced could not be cut ({uncut})" if uncut else ""),
            do="free space or mend the disk, then open it again",
        )
        failure.__cause__ = error
        with self._lock:
            self._failure = failure
            unreported = unreported + [done for group in self._groups for done in group.done]
            self._groups.clear()
            self._progress.notify_all()
        # What the log could not cut may reappear when it is opened again.
        call_all(unreported, InDoubtError(failure.what, do=failure.do) if uncut else failure)

    def _cut_unsynced(self) -> OSError | None:
        newest = self._live.newest
        if self._file is None or newest is None:
            return None
        end = max(self._synced_end - newest.base, layout.SEGMENT_HEADER.size)
        try:
            # A write that the disk refused as a whole has left nothing to cut.
            if self._file.size() > end:
                self._file.truncate(end)
                self._file.sync()
        except OSError as error:
            return error
        return None
