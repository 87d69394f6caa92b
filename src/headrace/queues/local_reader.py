"""Reads topics from the journals of a workspace, in the order of their offsets.

A reader never passes a transaction that is still open, so whatever commits later has a greater
offset than all that it has returned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import PeerLostError
from headrace.ids import JournalId, Producer
from headrace.journal.collection import Collection
from headrace.journal.committed_documents import CommittedFrames
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.journal.sequencer import Flags
from headrace.journal.workspace import Workspace
from headrace.queues.contract import RECORD_SCHEMA
from headrace.queues.local_layout import split_offset, to_records
from headrace.settings import MIB

_WINDOW_BYTES = 1 * MIB
_WINDOWS_MAX = 16
_FETCH_BYTES_MAX = 64 * MIB
"""A fetch returns fewer messages than it may, rather than more of the journal."""


class ReadWindow(NamedTuple):
    """The messages of the frames in [begin, end) of a journal."""

    begin: int
    end: int
    batches: Sequence[tuple[int, pa.RecordBatch]]
    """Each frame's offset with its messages."""

    def after(self, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages at or after `offset`."""
        position, number = split_offset(offset)
        for frame, batch in self.batches:
            if frame > position:
                yield batch
            elif frame == position:
                # The offset counts the messages of a frame, of which some may be left out.
                left_out = split_offset(batch.column(0)[0].as_py())[1] if batch.num_rows else 0
                yield batch.slice(max(number - left_out, 0))


class LocalReader:
    """Remembers the last window of some journals: a consumer that takes few messages reads on."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._windows: dict[JournalId, ReadWindow] = {}

    def fetch(
        self, collection: Collection, journal: JournalInfo, offset: int, most: int
    ) -> pa.RecordBatch:
        """Return up to `most` messages at or after `offset`, below the head of the journal."""
        found: list[pa.RecordBatch] = []
        position = split_offset(offset)[0]
        through = min(journal.head, position + _FETCH_BYTES_MAX)
        while most and position < through:
            window = self._window(collection, journal, position)
            for batch in window.after(offset):
                found.append(batch.slice(0, most))
                most -= found[-1].num_rows
                if not most:
                    break
            if window.end == position:
                break  # A transaction is open there.
            position = window.end
        if len(found) == 1:
            return found[0]
        return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], RECORD_SCHEMA)

    def _window(self, collection: Collection, journal: JournalInfo, position: int) -> ReadWindow:
        with self._lock:
            window = self._windows.get(journal.id)
        if window is None or not window.begin <= position < window.end:
            window = self._read(collection, journal, position)
            with self._lock:
                self._windows.pop(journal.id, None)
                self._windows[journal.id] = window
                if len(self._windows) > _WINDOWS_MAX:
                    del self._windows[next(iter(self._windows))]
        return window

    def _read(self, collection: Collection, journal: JournalInfo, begin: int) -> ReadWindow:
        selection = CommittedFrames()
        committed: list[Frame] = []
        open_since: dict[Producer, int] = {}
        end = begin
        # A fetch may cut between a frame and its commit: the window goes on to that.
        while end < journal.head and (end == begin or open_since):
            frames = self._fetch(journal, end)
            if not frames:
                break
            for frame in frames:
                if frame.flags is Flags.CONTINUE:
                    open_since.setdefault(frame.producer, frame.offset)
                elif frame.flags is Flags.ACK:
                    open_since.pop(frame.producer, None)
                committed += selection.take(frame)
            end = frames[-1].end
        end = min([end, *open_since.values()])
        # Two transactions that were open at once commit in another order than they wrote.
        committed.sort(key=lambda frame: frame.offset)
        batches = [
            (frame.offset, to_records(frame, collection.decode(frame.body, frame.schema)))
            for frame in committed
            if frame.offset < end
        ]
        return ReadWindow(begin, end, batches)

    def _fetch(self, journal: JournalInfo, position: int) -> list[Frame]:
        for _ in range(OWNERS_LOST_MAX):
            try:
                return self._workspace.fetch(journal, position, _WINDOW_BYTES).result()
            except PeerLostError:
                find_next_owner(self._workspace)
        return self._workspace.fetch(journal, position, _WINDOW_BYTES).result()

    def forget(self, journal: JournalId) -> None:
        with self._lock:
            self._windows.pop(journal, None)


def find_next_owner(workspace: Workspace) -> None:
    """Reach the next owner of a workspace whose owner was lost; raises why that is impossible."""
    workspace.journals_named([])
