"""Following a collection as transactions commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec
import pyarrow as pa

import headrace as hr
from headrace.errors import NotFoundError, PeerLostError
from headrace.ids import PRODUCER_BITS, JournalId, Offset, Producer
from headrace.journal.committed_documents import committed
from headrace.journal.contract import Changes, Frame, JournalInfo
from headrace.journal.documents.frame_documents import documents

_LOOK_S = 0.5
_PRODUCER_MASK = (1 << PRODUCER_BITS) - 1


class Follower:
    """The committed documents up to now, and then those of every transaction that commits.

    It ends when it is told to stop. When the owner of the workspace is gone it goes on with the
    next one, where it was.
    """

    def __init__(
        self,
        ws: hr.Workspace,
        name: str,
        selector: hr.Selector,
        start: Mapping[str, int],
        stopping: threading.Event,
    ) -> None:
        self._ws = ws
        self._stopping = stopping
        self._selector = selector
        self._start = start
        self._collection = ws.collection(name)
        self._journals: dict[JournalId, JournalInfo] = {}
        self._read_to: dict[JournalId, Offset] = {}

    def batches(self, *, meta: bool) -> Iterator[pa.RecordBatch]:
        for each in committed(map(_keyed, self._frames())):
            frame = each._replace(producer=Producer(each.producer & _PRODUCER_MASK))
            if frame.schema > self._collection.version:
                self._collection = self._ws.collection(self._collection.name)
            journal = self._journals[frame.journal]
            yield documents(self._collection, journal.name, frame, meta=meta)

    def _frames(self) -> Iterator[Frame]:
        """Every frame of every journal, each once."""
        while not self._stopping.is_set():
            watch = self._ws.watch(self._selector)
            try:
                while not self._stopping.is_set():
                    for journal in self._take(watch.next(_LOOK_S)):
                        yield from self._read(journal)
            except PeerLostError:
                continue
            finally:
                watch.close()

    def _take(self, changes: Changes) -> list[JournalInfo]:
        """The journals that have more to read."""
        if changes.deleted:
            self._collection = self._ws.collection(self._collection.name)
        for id in changes.deleted:
            self._journals.pop(id, None)
        for journal in changes.created:
            self._journals[journal.id] = journal
            begin = Offset(self._start.get(journal.name, journal.begin))
            self._read_to.setdefault(journal.id, begin)
        for id, head in changes.heads.items():
            if id in self._journals:
                self._journals[id] = msgspec.structs.replace(self._journals[id], head=head)
        moved = {each.id for each in changes.created} | changes.heads.keys()
        return [self._journals[id] for id in sorted(moved & self._journals.keys())]

    def _read(self, journal: JournalInfo) -> Iterator[Frame]:
        # One that was deleted meanwhile has no more; the watch will say so.
        with suppress(NotFoundError):
            for frame in self._ws.frames(journal, self._read_to[journal.id], committed=False):
                self._read_to[journal.id] = frame.end
                yield frame


def _keyed(frame: Frame) -> Frame:
    """What a producer has pending is of one journal, and `committed` knows frames by producer."""
    return frame._replace(producer=Producer(frame.journal << PRODUCER_BITS | frame.producer))
