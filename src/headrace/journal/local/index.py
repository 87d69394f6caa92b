"""The index: where the frames of each journal are in the log. Readers see only what is in it.

A journal costs one small object, and gets arrays of its own with its first frame. An entry holds
the frame's offset in the journal, the position of its record in the log, the greatest clock up to
it, and the row of the frame if its record is an `AckTable`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from sys import intern
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import AheadOfHeadError, BehindRetentionError, NotFoundError, OffsetError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import JournalInfo
from headrace.journal.local import records
from headrace.journal.local.catalog import DELETED_REMEMBERED
from headrace.journal.local.log_frames import DOCS_ROW
from headrace.journal.local.records import (
    AckTable,
    CollectionDeleted,
    CollectionPut,
    Docs,
    JournalsCreated,
    JournalsDeleted,
    Record,
    Trimmed,
)
from headrace.journal.names import parse_journal_name

_NONE: array[int] = array("Q")
_NO_ROWS: array[int] = array("I")


class Entry(NamedTuple):
    """Where one frame is."""

    offset: Offset
    end: Offset
    position: int
    row: int


class JournalIndex:
    """The frames of one journal."""

    __slots__ = (
        "begin",
        "clocks",
        "collection",
        "head",
        "id",
        "name",
        "offsets",
        "positions",
        "rows",
    )

    def __init__(self, id: JournalId, name: str) -> None:
        self.id = id
        self.name = name
        self.collection = intern(parse_journal_name(name).collection)
        self.begin = Offset(0)
        self.head = Offset(0)
        self.offsets = _NONE
        self.positions = _NONE
        self.clocks = _NONE
        self.rows = _NO_ROWS

    def __len__(self) -> int:
        return len(self.offsets)

    def info(self) -> JournalInfo:
        return JournalInfo(self.id, self.name, self.begin, self.head, len(self))

    def add(self, offset: int, end: int, position: int, clock: int, row: int) -> None:
        if self.offsets is _NONE:
            self.offsets, self.positions, self.clocks = array("Q"), array("Q"), array("Q")
            self.rows = array("I")
        self.offsets.append(offset)
        self.positions.append(position)
        self.clocks.append(max(clock, self.clocks[-1]) if self.clocks else clock)
        self.rows.append(row)
        self.head = Offset(end)

    def move(self, offset: int, position: int, row: int) -> None:
        """Let the frame at `offset` be its copy at `position`; trimmed frames stay trimmed."""
        if self.holds(offset):
            entry = bisect_left(self.offsets, offset)
            self.positions[entry] = position
            self.rows[entry] = row

    def holds(self, offset: int) -> bool:
        entry = bisect_left(self.offsets, offset)
        return entry < len(self.offsets) and self.offsets[entry] == offset

    def trim(self, begin: Offset) -> None:
        if begin <= self.begin:
            return
        self.begin = begin
        gone = bisect_left(self.offsets, begin)
        del self.offsets[:gone]
        del self.positions[:gone]
        del self.clocks[:gone]
        del self.rows[:gone]

    def documents_before(self, offset: Offset) -> Offset:
        """Return the offset of the last frame below `offset` that is no ACK; else the begin."""
        entry = bisect_left(self.offsets, offset) - 1
        while entry >= 0 and self.rows[entry] != DOCS_ROW:
            entry -= 1
        return Offset(self.offsets[entry]) if entry >= 0 else self.begin

    def entries(self, offset: Offset, through: Offset, most: int) -> list[Entry]:
        """Return up to `most` entries of [offset, through), from the first frame in it on."""
        first = bisect_left(self.offsets, offset)
        last = min(bisect_left(self.offsets, through), first + most)
        offsets = self.offsets[first : last + 1].tolist()
        if len(offsets) == last - first:
            offsets.append(self.head)
        return [
            Entry(Offset(offsets[i]), Offset(offsets[i + 1]), position, row)
            for i, (position, row) in enumerate(
                zip(self.positions[first:last], self.rows[first:last], strict=True)
            )
        ]

    def check_readable(self, offset: Offset, through: Offset) -> None:
        if offset < self.begin:
            raise BehindRetentionError(
                f"{self.name}: offset {offset} was removed by retention; it begins at {self.begin}",
                do=f"read from {self.begin} and accept the gap, or restore from a copy",
            )
        if offset < self.head and offset > self.begin and not self.holds(offset):
            raise OffsetError(
                f"{self.name}: offset {offset} lies inside a frame",
                do="read from an offset that a frame begins or ends at",
            )
        if max(offset, through) > self.head:
            raise AheadOfHeadError(
                f"{self.name}: offset {max(offset, through)} is beyond its head {self.head}",
                do="it belongs to another incarnation of the journal; start again from its begin",
            )


class Index:
    """The indexes of all journals. Only synced records change it, in the order of the log."""

    def __init__(self) -> None:
        self.journals: dict[JournalId, JournalIndex] = {}
        self.collections: dict[str, CollectionPut] = {}
        self.shrinks = 0
        """How often journals have become shorter since the index was created."""
        self._deleted: dict[JournalId, str] = {}
        """The names of the journals deleted last, for those who still read them."""

    def journal(self, id: JournalId) -> JournalIndex:
        if (found := self.journals.get(id)) is None:
            name = self.deleted_name(id) or f"of id {id}"
            raise NotFoundError(f"journal {name} is gone", do="list the journals again")
        return found

    def deleted_name(self, id: JournalId) -> str:
        """Return the name of a deleted journal; empty if that was too long ago."""
        return self._deleted.get(id, "")

    def holds(self, journal: JournalId, offset: int) -> bool:
        """Return True if the journal exists and has a frame at the offset."""
        return journal in self.journals and self.journals[journal].holds(offset)

    def apply(self, record: Record, position: int, body_bytes: int) -> Iterable[JournalIndex]:
        """Apply a synced record, and return the journals whose heads moved."""
        match record:
            case Docs():
                return self._apply_docs(record, position, body_bytes)
            case AckTable():
                return list(self._apply_acks(record, position))
            case CollectionPut():
                self.collections[record.name] = record
            case CollectionDeleted():
                self.collections.pop(record.name, None)
            case JournalsCreated():
                for id, name in record.journals:
                    self.journals[id] = JournalIndex(id, name)
            case JournalsDeleted():
                for id in record.journals:
                    # A journal without frames is false.
                    if (gone := self.journals.pop(id, None)) is not None:
                        self._deleted[id] = gone.name
                        if len(self._deleted) > DELETED_REMEMBERED:
                            del self._deleted[next(iter(self._deleted))]
                self.shrinks += 1
            case Trimmed():
                for id, begin in record.begins:
                    if journal := self.journals.get(id):
                        journal.trim(begin)
                self.shrinks += 1
        return ()

    def _apply_docs(self, docs: Docs, position: int, body_bytes: int) -> tuple[JournalIndex, ...]:
        if (journal := self.journals.get(docs.journal)) is None:
            return ()
        if docs.moved:
            journal.move(docs.offset, position, DOCS_ROW)
            return ()
        end = docs.offset + records.docs_bytes(body_bytes)
        newest = docs.clock + docs.documents - 1
        journal.add(docs.offset, end, position, newest, DOCS_ROW)
        return (journal,)

    def _apply_acks(self, acks: AckTable, position: int) -> Iterator[JournalIndex]:
        for row, (id, offset, _, clock) in enumerate(acks.rows.tolist()):
            if (journal := self.journals.get(id)) is None:
                continue
            if acks.moved:
                journal.move(offset, position, row)
            else:
                journal.add(offset, offset + records.ACK_BYTES, position, clock, row)
                yield journal

    def held_within(self, base: int, end: int) -> list[int]:
        """Return the ascending positions of records in [base, end) that journals still hold."""
        every = b"".join(journal.positions.tobytes() for journal in self.journals.values())
        positions = np.frombuffer(every, np.uint64)
        held: list[int] = np.unique(positions[(base <= positions) & (positions < end)]).tolist()
        return held

    def live_bytes(self, bases: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return how many bytes of each log segment journals still hold."""
        held = [journal for journal in self.journals.values() if len(journal)]
        offsets = np.frombuffer(b"".join(j.offsets.tobytes() for j in held), np.uint64)
        positions = np.frombuffer(b"".join(j.positions.tobytes() for j in held), np.uint64)
        ends = np.roll(offsets, -1)
        ends[np.cumsum([len(j) for j in held], dtype=np.intp) - 1] = [j.head for j in held]
        segments = np.searchsorted(bases, positions, "right") - 1
        return np.bincount(segments, ends - offsets, len(bases)).astype(np.int64)
