"""The owner of a workspace's journals: one log, one state, one index.

It takes two locks in this order. `_planning` covers a decision and the queueing of its records, so
the log has records in the order of the decisions. `_view` covers what readers see. The log's writer
thread takes it when records are synced, so nothing may wait for the log while it holds `_view`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headrace.errors import (
    DataError,
    HeadraceError,
    NotFoundError,
    StorageError,
    WorkspaceError,
    from_wire,
    to_wire,
)
from headrace.files import identify_directory
from headrace.ids import JournalId, Offset
from headrace.journal.committed_documents import committed
from headrace.journal.contract import Frame, JournalInfo, Write, Written
from headrace.journal.hint_tables import WIDE_BYTES, HintTable, HintTableCache
from headrace.journal.local import records
from headrace.journal.local.index import Entry, Index
from headrace.journal.local.log_frames import DOCS_ROW, FrameLocation, ack_frame, stored_frame
from headrace.journal.local.producers import Client
from headrace.journal.local.records import (
    CollectionPut,
    Docs,
    JournalsCreated,
    JournalsDeleted,
    Record,
)
from headrace.journal.local.snapshot import SnapshotFiles, capture
from headrace.journal.local.state import OwnerState
from headrace.journal.local.watch import LocalWatch
from headrace.journal.names import Selector, parse_journal_name
from headrace.log import Directory, Log
from headrace.settings import Settings

Reply = TypeVar("Reply")

_ENTRIES_AT_ONCE = 256


class PositionedFrame(NamedTuple):
    """A frame, and the position of its record in the log."""

    frame: Frame
    position: int


Found = TypeVar("Found", Frame, FrameLocation, PositionedFrame)


class Owner:
    """Decides, logs and shows for the `LocalJournals` of every client.

    The lock of the workspace directory makes sure that a workspace has one owner.
    """

    def __init__(self, root: Path, settings: Settings, identity: str = "") -> None:
        """`identity` is the random id of the workspace."""
        self.identity = identity
        self.log = Log(Directory(root / "log"), settings.log)
        self.directory = identify_directory(root / "log")
        self._planning = threading.Lock()
        self._view = threading.Lock()
        self._tables: HintTableCache[HintTable] = HintTableCache()
        self._watches: list[LocalWatch] = []
        self._failure: HeadraceError | None = None
        self._queueing = False
        try:
            self.snapshots = SnapshotFiles(root / "index")
            self._state, self._index = self._recover()
            # Leases are not durable, and no holder may get a number of an earlier owner.
            self._state.last_holder = max(self._state.last_holder, time.time_ns())
            self.decide(lambda state: (state.roll_back_all(), None))
        except BaseException:
            self.log.close()
            raise

    def _recover(self) -> tuple[OwnerState, Index]:
        position, state, index = self.snapshots.load(self._log_is_whole())
        if position > self.log.synced_end:
            raise DataError(
                f"the log ends at {self.log.synced_end}, before the snapshot at {position}",
                do="restore the log's newest segment from a backup",
            )
        for record_position, payload in self.log.scan(position):
            record, body = self._decode(record_position, payload)
            state.apply(record, len(body))
            index.apply(record, record_position, len(body))
        return state, index

    def _decode(self, position: int, payload: memoryview) -> tuple[Record, memoryview]:
        try:
            return records.decode(payload)
        except DataError as error:
            raise DataError(f"{self.log.where(position)}: {error.what}", do=error.do) from error

    def _log_is_whole(self) -> bool:
        segments = self.log.segments()
        follows = all(before.end == after.base for before, after in pairwise(segments))
        return follows and (not segments or segments[0].base == 0)

    # -- deciding --------------------------------------------------------------------------

    def decide(self, decision: Callable[[OwnerState], tuple[list[Record], Reply]]) -> Reply:
        """Make a decision, and return its reply once its records are durable and visible."""
        with self._planning, self._deciding():
            decided, reply = decision(self._state)
            done = self._queue(decided)
        done.result()
        return reply

    def write(self, client: Client, write: Write, bodies: Sequence[Any]) -> Written:
        """Append frames. The future is done once they are durable and visible.

        A refusal ends the producer's lease, so later writes in its pipeline fail too.
        """
        with self._planning, self._deciding():
            try:
                decided = self._state.write(client, write, [len(body) for body in bodies])
            except HeadraceError:
                self._queue(self._state.give_up(client, write.producer, write.holder))
                raise
            return self._queue(decided, bodies)

    def write_moved(self, payloads: Sequence[memoryview]) -> None:
        """Append copies of records, and return once they have replaced the originals."""
        with self._view:
            copies = [records.moved_copy(payload, self._index.holds) for payload in payloads]
        entries = [(record, len(body)) for record, _, body in copies]
        with self._planning, self._deciding():
            done = self._append(entries, [(head, body) for _, head, body in copies])
        done.result()

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Make sure that a decision and the queueing of its records both happen, or neither.

        A refusal (the decision raises a HeadraceError) has changed nothing. After any other error
        the state may be ahead of the log, so the owner decides nothing more: this sets `_failure`
        first, and clears it when all went well. The caller takes the lock, because Ctrl-C can
        interrupt this function too.
        """
        if self._failure:
            raise from_wire(*to_wire(self._failure))
        self._queueing = False
        self._failure = _INTERRUPTED
        try:
            yield
        except BaseException as error:
            refused = isinstance(error, HeadraceError) and not self._queueing
            self._failure = None if refused else _failure(error)
            raise
        self._failure = None

    def _queue(self, decided: Sequence[Record], bodies: Sequence[Any] = ()) -> Written:
        self._queueing = True
        entries, payloads = [], []
        remaining = iter(bodies)
        for record in decided:
            body = next(remaining) if isinstance(record, Docs) else b""
            entries.append((record, len(body)))
            payloads.append((records.encode(record), body))
        if not decided and not self.log.pending:
            self._queueing = False
            nothing: Written = Future()
            nothing.set_result(())
            return nothing
        return self._append(entries, payloads)

    def _append(
        self, entries: Sequence[tuple[Record, int]], payloads: Sequence[Sequence[Any]]
    ) -> Written:
        """Append records. Even without any, the future waits for everything queued before."""
        self._queueing = True
        done: Written = Future()

        def synced(positions: list[int], error: HeadraceError | None) -> None:
            if error:
                done.set_exception(error)
                return
            with self._view:
                for (record, body_bytes), position in zip(entries, positions, strict=True):
                    self._show(record, position, body_bytes)
            done.set_result(tuple(r.offset for r, _ in entries if isinstance(r, Docs)))

        self.log.append(payloads, synced)
        self._queueing = False
        return done

    def _show(self, record: Record, position: int, body_bytes: int) -> None:
        moved = self._index.apply(record, position, body_bytes)
        if not self._watches:
            return
        self._watches = [watch for watch in self._watches if not watch.closed]
        for watch in self._watches:
            if moved:
                watch.moved({journal.id: journal.head for journal in moved})
            elif isinstance(record, JournalsCreated):
                watch.created(self._index.journals[id] for id, _ in record.journals)
            elif isinstance(record, JournalsDeleted):
                watch.deleted(record.journals)

    # -- reading ---------------------------------------------------------------------------

    def collections(self) -> list[CollectionPut]:
        with self._view:
            return sorted(self._index.collections.values(), key=lambda c: c.name)

    def journals(self, selector: Selector) -> list[JournalInfo]:
        wanted = selector.collection
        with self._view:
            found = [
                journal.info()
                for journal in self._index.journals.values()
                if not wanted or journal.collection == wanted
            ]
        if selector.include or selector.exclude:
            found = [info for info in found if selector.matches(parse_journal_name(info.name))]
        return sorted(found, key=lambda info: info.name)

    def journals_named(self, names: Sequence[str]) -> list[JournalInfo]:
        with self._planning:
            ids = [self._state.catalog.by_name.get(name) for name in names]
        with self._view:
            known = self._index.journals
            return [known[id].info() for id in ids if id is not None and id in known]

    def read(
        self, journal: JournalId, offset: Offset, through: Offset, only_committed: bool
    ) -> Iterator[Frame]:
        frames = self._found(journal, offset, through, self._frames)
        return committed(frames) if only_committed else frames

    def positioned(
        self, journal: JournalId, offset: Offset, through: Offset
    ) -> Iterator[PositionedFrame]:
        """Yield the frames of [offset, through), each with the position of its record."""
        return self._found(
            journal,
            offset,
            through,
            lambda id, entries: (
                PositionedFrame(self._frame(id, entry), entry.position) for entry in entries
            ),
        )

    def locations(
        self, journal: JournalId, offset: Offset, through: Offset
    ) -> Iterator[FrameLocation]:
        """Yield where the frames of [offset, through) are, in the files of `directory`."""
        return self._found(journal, offset, through, self._locations)

    def _found(
        self,
        journal: JournalId,
        offset: Offset,
        through: Offset,
        find: Callable[[JournalId, Sequence[Entry]], Iterator[Found]],
    ) -> Iterator[Found]:
        with self._view:
            self._index.journal(journal).check_readable(offset, through)
        return self._find(journal, offset, through, find)

    def _find(
        self,
        journal: JournalId,
        offset: Offset,
        through: Offset,
        find: Callable[[JournalId, Sequence[Entry]], Iterator[Found]],
    ) -> Iterator[Found]:
        missing: Entry | None = None
        while offset < through:
            with self._view:
                index = self._index.journal(journal)
                index.check_readable(offset, through)
                entries = index.entries(offset, through, _ENTRIES_AT_ONCE)
            if not entries:
                return
            if entries[0] == missing:
                raise DataError(
                    f"{index.name}: the log has lost the frame at offset {missing.offset},"
                    f" which was at {missing.position}",
                    do="restore the log's missing segment from a backup",
                )
            try:
                for entry, found in zip(entries, find(journal, entries), strict=True):
                    yield found
                    offset = entry.end
            except _SegmentGoneError:
                missing = next(entry for entry in entries if entry.offset >= offset)

    def _frames(self, journal: JournalId, entries: Sequence[Entry]) -> Iterator[Frame]:
        return (self._frame(journal, entry) for entry in entries)

    def _frame(self, journal: JournalId, entry: Entry) -> Frame:
        offset, end, position, row = entry
        if row != DOCS_ROW and (table := self._tables.get(position)) is not None:
            return ack_frame(journal, offset, end, row, table, brought=False)
        try:
            payload = self.log.read(position)
        except NotFoundError as error:
            raise _SegmentGoneError from error
        try:
            frame = stored_frame(journal, offset, end, row, payload)
        except DataError as error:
            raise DataError(f"{self.log.where(position)}: {error.what}", do=error.do) from error
        if frame.hints is not None and frame.hints.nbytes > WIDE_BYTES:
            self._tables.put(position, frame.hints, frame.hints.nbytes)
        return frame

    def _locations(self, _: JournalId, entries: Sequence[Entry]) -> Iterator[FrameLocation]:
        extents = self.log.extents(entry.position for entry in entries)
        for entry in entries:
            try:
                extent = next(extents)
            except NotFoundError as error:
                raise _SegmentGoneError from error
            yield FrameLocation(entry.offset, entry.end, entry.row, extent)

    def journal_names(self, journals: Sequence[JournalId]) -> list[str]:
        with self._view:
            known = self._index.journals
            return [known[id].name if id in known else "" for id in journals]

    def watch(self, *selectors: Selector) -> LocalWatch:
        watch = LocalWatch(self._view, selectors)
        with self._view:
            watch.created(self._index.journals.values())
            self._watches.append(watch)
        return watch

    # -- maintenance -----------------------------------------------------------------------

    def trim(self, begins: Sequence[tuple[JournalId, Offset]]) -> None:
        self.decide(lambda state: (state.trim(begins), None))

    def with_index(self, use: Callable[[Index], Reply]) -> Reply:
        """Run `use` while nothing changes the index; it must not wait for anything."""
        with self._view:
            return use(self._index)

    def save_snapshot(self) -> int:
        """Save a snapshot and return its size.

        Writers wait for a moment, so that state and index are both at the log's end.
        """
        with self._planning, self._deciding():
            # This raises if the log has failed, because then the state is ahead of the disk.
            position = self.log.drain()
            with self._view:
                data = capture(position, self._state, self._index)
        try:
            self.snapshots.save(position, data)
        except OSError as error:
            raise StorageError(
                f"a snapshot of the index could not be written: {error.strerror or error}",
                do="free space or mend the disk; everything is still in the log",
            ) from error
        return len(data)

    def close(self) -> None:
        with self._view:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
        with self._planning:
            self.log.close()


_REOPEN = "open the workspace again; what was acknowledged is there"
_INTERRUPTED = WorkspaceError(
    "the owner of the workspace stopped writing after an interruption", do=_REOPEN
)


def _failure(error: BaseException) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return WorkspaceError(
        f"the owner of the workspace stopped writing after {type(error).__name__}: {error}",
        do=_REOPEN,
    )


class _SegmentGoneError(Exception):
    """The frame moved after the index was read, or it is lost."""
