"""Follows one collection: its committed documents up to now, and then each new transaction."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.errors import NotFoundError, PeerLostError
from headrace.ids import JournalId, Offset
from headrace.journal.committed_documents import CommittedFrames, documents
from headrace.journal.contract import Changes, Frame, JournalInfo
from headrace.journal.names import Selector

if TYPE_CHECKING:
    from headrace.journal.workspace import Workspace

_CHECK_STOP_S = 0.5
"""A follower that waits for changes checks this often whether it should stop."""


class _JournalRead:
    """The read of one journal: where it continues, and which transactions it has seen begin."""

    def __init__(self, journal: JournalInfo, offset: Offset) -> None:
        self.journal = journal
        self._offset = offset
        self._committed = CommittedFrames()

    def frames(self, workspace: Workspace) -> Iterator[Frame]:
        """Yield the frames that commit between the end of the last call and the journal's head."""
        for frame in workspace.frames(self.journal, self._offset, committed=False):
            # If the owner dies in the middle, the next call continues behind this frame.
            self._offset = frame.end
            yield from self._committed.take(frame)


class CollectionFollower:
    """What `Workspace.follow` does: it reads each journal of the selector, and watches for more."""

    def __init__(
        self,
        workspace: Workspace,
        collection: str,
        selector: Selector,
        start: Mapping[str, int],
        stop: threading.Event,
    ) -> None:
        self._workspace = workspace
        self._selector = selector
        self._start = start
        self._stop = stop
        self._collection = workspace.collection(collection)
        self._reads: dict[JournalId, _JournalRead] = {}

    def batches(self, *, meta: bool) -> Generator[pa.RecordBatch, None, None]:
        """Yield batches of documents until `stop` is set."""
        while not self._stop.is_set():
            # Opening a watch raises PeerLostError if no owner can be found. An owner that is lost
            # later is replaced: the next one shows the same frames at the same offsets.
            watch = self._workspace.watch(self._selector)
            with closing(watch), suppress(PeerLostError):
                while not self._stop.is_set():
                    for read in self._update(watch.next(_CHECK_STOP_S)):
                        yield from self._read(read, meta=meta)

    def _update(self, changes: Changes) -> list[_JournalRead]:
        """Return the reads whose journals have more frames."""
        if changes.deleted:
            self._collection = self._workspace.collection(self._collection.name)
        for id in changes.deleted:
            self._reads.pop(id, None)
        for journal in changes.created:
            begin = Offset(self._start.get(journal.name, journal.begin))
            read = self._reads.setdefault(journal.id, _JournalRead(journal, begin))
            read.journal = journal
        for id in changes.heads.keys() & self._reads.keys():
            read = self._reads[id]
            read.journal = msgspec.structs.replace(read.journal, head=changes.heads[id])
        moved = {each.id for each in changes.created} | changes.heads.keys()
        return [self._reads[id] for id in sorted(moved & self._reads.keys())]

    def _read(self, read: _JournalRead, *, meta: bool) -> Iterator[pa.RecordBatch]:
        # A journal that was deleted meanwhile has no more frames; the next change says so.
        with suppress(NotFoundError):
            for frame in read.frames(self._workspace):
                if frame.schema > self._collection.version:
                    self._collection = self._workspace.collection(self._collection.name)
                yield documents(self._collection, read.journal.name, frame, meta=meta)
