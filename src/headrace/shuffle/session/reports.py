"""What Slices have reported, and what cannot follow it. Pure.

A report becomes part of a checkpoint, and one that says too much would lose documents. So each is
compared with what it describes: a continuous read of each place, from where it was started and not
beyond what is there.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import UsageError
from headrace.frontier import PRODUCER_ROW, TAG_MAX, BindingTag, Frontier
from headrace.ids import Offset, Producer, format_producer
from headrace.shuffle.binding import Sources
from headrace.shuffle.delta import Delta
from headrace.shuffle.slice.read import Start


class Reports:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._heads: dict[int, Offset] = {}
        """By place, of those that are read."""
        self._through: dict[int, int] = {}
        self._commits: dict[tuple[int, int], int] = {}
        """By place and producer."""

    def started(self, start: Start) -> None:
        self._heads[start.place] = start.head
        self._through[start.place] = start.offset
        for producer, commit in start.producers:
            self._commits[start.place, producer] = commit

    def knows(self, place: int) -> bool:
        """Whether it was ever started."""
        return place in self._through

    def grown(self, place: int, head: Offset) -> None:
        self._heads[place] = max(head, self._heads[place])

    def stopped(self, place: int) -> None:
        """What was read of it may still be reported."""
        self._heads.pop(place, None)

    def flaw(self, delta: Delta) -> str | None:
        """What cannot be true of a report, if anything; else it is remembered."""
        found = self._wrong_rows(delta) or self._wrong_groups(delta) or self._wrong_step(delta)
        if found is None:
            self._through |= dict(delta.journals.tolist())
            self._commits |= {(at, producer): c for at, producer, c, *_ in delta.producers.tolist()}
        return found

    def _wrong_rows(self, delta: Delta) -> str | None:
        """Whatever came before."""
        if delta.documents < 0:
            return f"it counts {delta.documents} documents"
        producers = np.zeros(len(delta.producers), PRODUCER_ROW)
        for name in PRODUCER_ROW.names or ():
            producers[name] = delta.producers[name]
        try:
            Frontier.from_rows(delta.journals, producers)
        except UsageError as error:
            return error.what
        return None

    def _wrong_groups(self, delta: Delta) -> str | None:
        for cohort, _, _, at, producer, clock, first in delta.commits.tolist():
            if cohort != self._cohort(at & TAG_MAX):
                return f"place {at} is not in cohort {cohort}"
            if first > clock:
                return f"{_name(at, producer)} commits {clock}, which is before it began at {first}"
        for cohort, _, _, journal, binding, *_, offset in delta.parts.tolist():
            if cohort != self._cohort(binding):
                return f"binding {binding} is not in cohort {cohort}"
            if offset < 0:
                return f"it names an ACK at {offset} of journal {journal}"
        return None

    def _cohort(self, binding: int) -> int | None:
        source = self._sources.by_tag.get(BindingTag(binding))
        return source.cohort if source else None

    def _wrong_step(self, delta: Delta) -> str | None:
        through = dict(delta.journals.tolist())
        for at, offset in through.items():
            if offset < self._through[at]:
                return f"place {at} goes back from {self._through[at]} to {offset}"
            if offset > self._heads.get(at, offset):
                return f"place {at} is read through {offset}, and ends at {self._heads[at]}"
        for at, producer, commit, _, since in delta.producers.tolist():
            if commit < (known := self._commits.get((at, producer), 0)):
                return f"{_name(at, producer)} goes back from {known} to {commit}"
            if not -1 <= since <= through[at]:
                return f"{_name(at, producer)} began at {since}, read only through {through[at]}"
        return None


def _name(at: int, producer: int) -> str:
    return f"place {at}: producer {format_producer(Producer(producer))}"
