"""What a Slice has to report of a lane, and the Flush that precedes each report. Pure.

A report says what the Slice took of the lane, so that the Session may show it. It may leave only
when every Queue has written what it says: the Slice sends them a Flush, and reports when all have
answered. A lane has one Flush under way at a time, and lanes do not wait for each other's: some
Queue may answer a Flush only when it has written what other Slices have in the lanes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from headrace.frontier import JOURNAL_ROW, TAG_MAX
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source
from headrace.shuffle.block import SpanEnd
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.slice.causal_hints import CausalHints, HintedTransaction, TransactionPart
from headrace.shuffle.slice.journal_read import Read

NOT_COMMITTED = -1


class _TransactionId(NamedTuple):
    """A transaction within a cohort, named by its least ACK."""

    cohort: int
    producer: int
    clock: int


class _Flush(NamedTuple):
    """A Flush that is under way, and what to report when every Queue has answered it."""

    number: int
    delta: ProgressReport
    unanswered: set[int]


class LaneProgress:
    def __init__(self, hints: CausalHints, members: int) -> None:
        self._hints = hints
        self._members = members
        self._places: dict[tuple[int, int], int] = {}
        """By journal and binding, the places that this Slice reads in the lane."""
        self._flush: _Flush | None = None
        self._clear()

    def _clear(self) -> None:
        self._is_worth_a_flush = False
        self._through: dict[int, Offset] = {}
        """By place, the offset up to which frames were taken."""
        self._duplicates: set[int] = set()
        """Places with duplicates. They commit nothing, but somebody may wait for them."""
        self._producers: dict[int, dict[int, tuple[Sequenced, int]]] = {}
        """By place, the state of each producer, and its span as a frontier has it."""
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        """By place and producer, the first span that was committed: its begin and its commit."""
        self._parts: dict[_TransactionId, list[TransactionPart]] = {}
        self._commits: dict[_TransactionId, list[tuple[SpanEnd, int]]] = {}
        """The ACKs of each transaction, each with the offset where its span begins."""
        self.documents = 0
        """The number of documents that were committed."""

    # -- what the Slice takes --------------------------------------------------------------

    def started(self, place: int, journal: JournalId) -> None:
        self._places[journal, place & TAG_MAX] = place

    def stopped(self, place: int, journal: JournalId) -> None:
        """Report nothing more of the place."""
        del self._places[journal, place & TAG_MAX]
        self._through.pop(place, None)
        self._duplicates.discard(place)
        self._producers.pop(place, None)

    def took(self, place: int, through: Offset, *, is_last: bool) -> None:
        """The Slice took a frame that ends at `through`; `is_last` if it has reached the head.

        Duplicates come in runs. The Slice reports them at the end of their run.
        """
        self._through[place] = through
        if is_last:
            self._is_worth_a_flush |= place in self._duplicates

    def passed_over(self, place: int) -> None:
        """The frame was a duplicate."""
        self._duplicates.add(place)

    def stepped(self, place: int, producer: Producer, after: Sequenced, end: Offset) -> None:
        """The frame that ends at `end` moved the producer to `after`."""
        self._is_worth_a_flush |= place in self._duplicates
        span = -end if after.begin is None else after.begin
        self._producers.setdefault(place, {})[producer] = after, span

    def rolled_back(self) -> None:
        self._is_worth_a_flush = True

    def committed(
        self, source: Source, end: SpanEnd, begin: int, documents: int, frame: Frame
    ) -> None:
        """`frame` is the ACK of the span that began at `begin`, or documents outside of any."""
        self._is_worth_a_flush = True
        self.documents += documents
        self._first.setdefault((end.place, end.producer), (begin, end.last_commit))
        hinted = self._hints.of_transaction(frame.hints)
        if not hinted.rows and len(self._hints.in_cohort(frame.journal, source.cohort)) > 1:
            # The Session shows even a transaction of one journal under all its bindings at once.
            row = frame.journal, frame.offset, end.producer, end.last
            hinted = HintedTransaction([row], end.producer, end.last, {})
        if not hinted.rows:
            return
        transaction = _TransactionId(source.cohort, hinted.producer, hinted.clock)
        self._commits.setdefault(transaction, []).append((end, begin))
        if transaction not in self._parts:
            self._parts[transaction] = self._hints.parts_of(hinted, source.cohort)

    # -- what it reports -------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if everything that is worth a report was reported."""
        return self._flush is None and not self._is_worth_a_flush

    @property
    def wants_flush(self) -> bool:
        return self._flush is None and self._is_worth_a_flush

    def flush(self, number: int, reads: Mapping[int, Read]) -> None:
        """Begin the Flush of this number: it covers everything that was taken so far."""
        self._flush = _Flush(number, self._delta(reads), set(range(self._members)))
        self._clear()

    def awaits(self, member: int, number: int) -> bool:
        """True if the Queue of the member has not answered the Flush of this number yet."""
        flush = self._flush
        return flush is not None and flush.number == number and member in flush.unanswered

    def flushed(self, member: int) -> ProgressReport | None:
        """The Queue answered the Flush. Return what to report if it was the last Queue."""
        assert self._flush is not None
        _, delta, unanswered = self._flush
        unanswered.discard(member)
        if unanswered:
            return None
        self._flush = None
        return delta

    def _delta(self, reads: Mapping[int, Read]) -> ProgressReport:
        commits: list[tuple[int, ...]] = []
        parts: list[tuple[int, ...]] = []
        for transaction, hinted_parts in self._parts.items():
            awaited = [part for part in hinted_parts if not self._is_taken(part, reads)]
            if not awaited and len({part.producer for part in hinted_parts}) < 2:
                continue
            parts += [(*transaction, *part) for part in awaited]
            commits += [
                (*transaction, end.place, end.producer, end.last, end.first, begin)
                for end, begin in self._commits[transaction]
            ]
        self._hints.reported()
        return ProgressReport(
            np.array(list(self._through.items()), JOURNAL_ROW),
            np.array(list(self._producer_rows()), PROGRESS_ROW),
            np.array(commits, COMMIT_ROW),
            np.array(parts, PART_ROW),
            self.documents,
        )

    def _is_taken(self, part: TransactionPart, reads: Mapping[int, Read]) -> bool:
        place = self._places.get((part.journal, part.binding))
        return place is not None and reads[place].taken > part.offset

    def _producer_rows(self) -> Iterator[tuple[int, ...]]:
        for place, producers in self._producers.items():
            for producer, (state, span) in producers.items():
                begin, commit = self._first.get((place, producer), (NOT_COMMITTED, 0))
                yield place, producer, state.last_commit, span, begin, commit

    def validate(self, reads: Iterable[Read]) -> None:
        """Assert what holds between two events; `reads` are all reads of the lane."""
        taken = {read.place: read.taken for read in reads}
        assert set(self._places.values()) == taken.keys(), "the places of the lane"
        assert self._flush is None or self._flush.unanswered, "a Flush that all have answered"
        assert all(taken[place] == through for place, through in self._through.items()), "through"
        assert self._duplicates | self._producers.keys() <= self._through.keys(), "not taken"
        assert self._commits.keys() == self._parts.keys(), "transactions without parts"
        if self.documents or self._commits:
            assert self._is_worth_a_flush, "commits that nobody would report"
