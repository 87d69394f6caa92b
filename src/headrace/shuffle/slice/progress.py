"""What a Slice has to report at its next Flush. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from headrace.frontier import JOURNAL_ROW
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.hints import Table
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, Delta
from headrace.shuffle.queue.state import Ended

NOT_COMMITTED = -1
_WIDE_ROWS = 16


class ReadSoFar(Protocol):
    @property
    def taken(self) -> Offset: ...


class _Group(NamedTuple):
    """A transaction within a cohort, by its least ACK."""

    cohort: int
    producer: int
    clock: int


class _Part(NamedTuple):
    journal: int
    binding: int
    producer: int
    clock: int
    offset: int


class _Hinted(NamedTuple):
    """The commits of a transaction, if it has several, and the least of them."""

    rows: list[tuple[int, int, int, int]]
    producer: int
    clock: int
    parts: dict[int, list[_Part]]
    """By cohort; made when they are wanted."""


class Progress:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._bindings: dict[int, tuple[int, ...]] = {}
        self._places: dict[tuple[int, int], int] = {}
        """By journal and binding, of what this Slice reads."""
        self._hinted: dict[tuple[int, object], _Hinted] = {}
        """By the length and the first row of their table, which no two transactions share."""
        self._known: WeakValueDictionary[int, Table] = WeakValueDictionary()
        """Tables of hints that name no unknown journal, by identity: ACKs share them."""
        self._clear()

    def _clear(self) -> None:
        self.worth_a_flush = False
        self._through: dict[int, Offset] = {}
        self._producers: dict[tuple[int, int], tuple[Sequenced, int]] = {}
        """Each with its span, as a frontier has it."""
        self._since: dict[tuple[int, int], int] = {}
        self._parts: dict[_Group, list[_Part]] = {}
        self._commits: dict[_Group, list[Ended]] = {}
        self._wide = {key: each for key, each in self._hinted.items() if key[0] > _WIDE_ROWS}
        """The ACKs of these come over several reports."""
        self._hinted = {}
        self._documents = 0

    def started(self, place: int, journal: JournalId) -> None:
        self._places[journal, place & 0xFFFFFFFF] = place

    def stopped(self, place: int) -> None:
        self._places = {key: at for key, at in self._places.items() if at != place}
        self._through.pop(place, None)
        self._producers = {key: row for key, row in self._producers.items() if key[0] != place}

    def unknown_journals(self, frames: Iterable[Frame]) -> set[int]:
        tables = {id(frame.hints): frame.hints for frame in frames if frame.hints is not None}
        unknown: set[int] = set()
        for at, table in tables.items():
            if len(table) < 2 or self._known.get(at) is table:
                continue
            named = table["journal"].tolist()
            found = {journal for journal in named if journal and journal not in self._bindings}
            if not found:
                self._known[at] = table
            unknown |= found
        return unknown

    def learned(self, journal: JournalId, tags: Iterable[int]) -> None:
        self._bindings[journal] = tuple(tags)

    def touched(self, place: int, through: Offset) -> None:
        self._through[place] = through

    def stepped(self, place: int, producer: Producer, after: Sequenced, end: Offset) -> None:
        """`end` is that of the frame that made the step."""
        self._producers[place, producer] = after, -end if after.begin is None else after.begin

    def rolled_back(self) -> None:
        self.worth_a_flush = True

    def committed(
        self,
        source: Source,
        ended: Ended,
        begin: int,
        documents: int,
        frame: Frame,
    ) -> None:
        """`frame` is the ACK, or the documents that committed themselves."""
        self.worth_a_flush = True
        self._documents += documents
        self._since.setdefault((ended.place, ended.producer), begin)
        hinted = self._of_transaction(frame.hints)
        if not hinted.rows and len(self._in_cohort(frame.journal, source.cohort)) > 1:
            # Also a transaction of one journal is shown under all of its bindings at once.
            row = frame.journal, frame.offset, ended.producer, ended.last
            hinted = _Hinted([row], ended.producer, ended.last, {})
        if not hinted.rows:
            return
        group = _Group(source.cohort, hinted.producer, hinted.clock)
        self._commits.setdefault(group, []).append(ended)
        if group not in self._parts:
            self._parts[group] = self._parts_of(hinted, source.cohort)

    def _of_transaction(self, hints: Table | None) -> _Hinted:
        if hints is None or len(hints) < 2:
            return _ALONE
        key = len(hints), hints[0].item()
        if (found := self._hinted.get(key)) is None:
            found = self._hinted[key] = self._wide.get(key) or _hinted(hints.tolist())
        return found

    def _parts_of(self, hinted: _Hinted, cohort: int) -> list[_Part]:
        if (found := hinted.parts.get(cohort)) is None:
            found = hinted.parts[cohort] = [
                _Part(journal, tag, producer, clock, offset)
                for journal, offset, producer, clock in hinted.rows
                for tag in self._in_cohort(journal, cohort)
            ]
        return found

    def _in_cohort(self, journal: int, cohort: int) -> list[int]:
        """The bindings of the cohort that read the journal."""
        return [
            tag
            for tag in self._bindings[journal]
            if self._sources.by_tag[tag].cohort == cohort  # type: ignore[index]
        ]

    def report(self, reads: Mapping[int, ReadSoFar]) -> Delta:
        """Everything since the last report; what comes next belongs to the next one."""
        commits: list[tuple[int, ...]] = []
        parts: list[tuple[int, ...]] = []
        for group, of_group in self._parts.items():
            open_parts = [part for part in of_group if not self._is_taken(part, reads)]
            if not open_parts and len({part.producer for part in of_group}) < 2:
                continue
            parts += [(*group, *part) for part in open_parts]
            commits += [
                (*group, end.place, end.producer, end.last, end.first)
                for end in self._commits[group]
            ]
        delta = Delta(
            np.array(list(self._through.items()), JOURNAL_ROW),
            np.array([self._producer_row(*item) for item in self._producers.items()], PROGRESS_ROW),
            np.array(commits, COMMIT_ROW),
            np.array(parts, PART_ROW),
            self._documents,
        )
        self._clear()
        return delta

    def _is_taken(self, part: _Part, reads: Mapping[int, ReadSoFar]) -> bool:
        place = self._places.get((part.journal, part.binding))
        return place is not None and reads[place].taken > part.offset

    def _producer_row(self, key: tuple[int, int], row: tuple[Sequenced, int]) -> tuple[int, ...]:
        state, span = row
        return (*key, state.last_commit, span, self._since.get(key, NOT_COMMITTED))


_ALONE = _Hinted([], 0, 0, {})


def _hinted(rows: list[tuple[int, int, int, int]]) -> _Hinted:
    # Rows of clock 0 roll back; those without a journal are of a coordinator that wrote nothing.
    commits = [row for row in rows if row[0] and row[3]]
    if len(commits) < 2:
        return _ALONE
    producer, clock = min((producer, clock) for *_, producer, clock in commits)
    return _Hinted(commits, producer, clock, {})
