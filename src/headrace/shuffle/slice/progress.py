"""What a Slice has to report at its next Flush of a lane. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from headrace.frontier import JOURNAL_ROW, TAG_MAX
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source
from headrace.shuffle.block import SpanEnd
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, Delta
from headrace.shuffle.slice.causal_hints import CausalHints, Hinted, Part

NOT_COMMITTED = -1


class ReadSoFar(Protocol):
    @property
    def taken(self) -> Offset: ...


class _Group(NamedTuple):
    """A transaction within a cohort, by its least ACK."""

    cohort: int
    producer: int
    clock: int


class Progress:
    """Of one lane."""

    def __init__(self, hinting: CausalHints) -> None:
        self._hinting = hinting
        self._places: dict[tuple[int, int], int] = {}
        """By journal and binding, of what this Slice reads."""
        self._clear()

    def _clear(self) -> None:
        self.worth_a_flush = False
        self._through: dict[int, Offset] = {}
        self._passed_over: set[int] = set()
        """Places where duplicates were read, which commit nothing but may be waited for."""
        self._producers: dict[int, dict[int, tuple[Sequenced, int]]] = {}
        """By place, each with its span, as a frontier has it."""
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        """By place and producer, where the first span began that was committed, and its commit."""
        self._parts: dict[_Group, list[Part]] = {}
        self._commits: dict[_Group, list[tuple[SpanEnd, int]]] = {}
        """Each with the offset where its span begins."""
        self.documents = 0
        """That are committed."""

    def started(self, place: int, journal: JournalId) -> None:
        self._places[journal, place & TAG_MAX] = place

    def stopped(self, place: int, journal: JournalId) -> None:
        del self._places[journal, place & TAG_MAX]
        self._through.pop(place, None)
        self._passed_over.discard(place)
        self._producers.pop(place, None)

    def touched(self, place: int, through: Offset) -> None:
        self._through[place] = through

    def passed_over(self, place: int) -> None:
        """A duplicate. They come in runs, so they are reported when their run ends."""
        self._passed_over.add(place)

    def reached_head(self, place: int) -> None:
        self.worth_a_flush |= place in self._passed_over

    def stepped(self, place: int, producer: Producer, after: Sequenced, end: Offset) -> None:
        """`end` is that of the frame that made the step."""
        self.worth_a_flush |= place in self._passed_over
        span = -end if after.begin is None else after.begin
        self._producers.setdefault(place, {})[producer] = after, span

    def rolled_back(self) -> None:
        self.worth_a_flush = True

    def committed(
        self,
        source: Source,
        ended: SpanEnd,
        begin: int,
        documents: int,
        frame: Frame,
    ) -> None:
        """`frame` is the ACK, or the documents that committed themselves."""
        self.worth_a_flush = True
        self.documents += documents
        self._first.setdefault((ended.place, ended.producer), (begin, ended.last_commit))
        hinted = self._hinting.of_transaction(frame.hints)
        if not hinted.rows and len(self._hinting.in_cohort(frame.journal, source.cohort)) > 1:
            # Also a transaction of one journal is shown under all of its bindings at once.
            row = frame.journal, frame.offset, ended.producer, ended.last
            hinted = Hinted([row], ended.producer, ended.last, {})
        if not hinted.rows:
            return
        group = _Group(source.cohort, hinted.producer, hinted.clock)
        self._commits.setdefault(group, []).append((ended, begin))
        if group not in self._parts:
            self._parts[group] = self._hinting.parts_of(hinted, source.cohort)

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
                (*group, end.place, end.producer, end.last, end.first, begin)
                for end, begin in self._commits[group]
            ]
        delta = Delta(
            np.array(list(self._through.items()), JOURNAL_ROW),
            np.array(list(self._producer_rows()), PROGRESS_ROW),
            np.array(commits, COMMIT_ROW),
            np.array(parts, PART_ROW),
            self.documents,
        )
        self._hinting.reported()
        self._clear()
        return delta

    def _is_taken(self, part: Part, reads: Mapping[int, ReadSoFar]) -> bool:
        place = self._places.get((part.journal, part.binding))
        return place is not None and reads[place].taken > part.offset

    def _producer_rows(self) -> Iterator[tuple[int, ...]]:
        for place, producers in self._producers.items():
            for producer, (state, span) in producers.items():
                since, first = self._first.get((place, producer), (NOT_COMMITTED, 0))
                yield place, producer, state.last_commit, span, since, first
