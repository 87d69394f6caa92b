"""What Slices have reported, and what cannot follow it. Pure.

A report becomes part of a checkpoint, and one that says too much would lose documents. So each is
compared with what it describes: a continuous read of each place, from where it was started and not
beyond what is there.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import ProtocolError
from headrace.frontier import TAG_MAX, BindingTag
from headrace.ids import PRODUCER_BITS, Offset, Producer, format_producer
from headrace.shuffle.binding import Sources
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.progress_delta import Delta


class Reports:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._heads: dict[int, Offset] = {}
        """By place, of those that are read."""
        self._through: dict[int, int] = {}
        self._commits: dict[tuple[int, int], int] = {}
        """By place and producer."""

    def started(self, start: ReadStart) -> None:
        self._heads[start.place] = start.head
        self._through[start.place] = start.offset
        for producer, commit in start.producers:
            self._commits[start.place, producer] = commit

    def grown(self, place: int, head: Offset) -> None:
        self._heads[place] = max(head, self._heads[place])

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Nothing more is reported of those places."""
        self._heads = {at: head for at, head in self._heads.items() if not is_gone(at)}
        self._through = {at: end for at, end in self._through.items() if not is_gone(at)}
        self._commits = {key: clock for key, clock in self._commits.items() if not is_gone(key[0])}

    def flaw(self, delta: Delta) -> str | None:
        """What cannot be true of a report, if anything; else it is remembered."""
        through: dict[int, int] = {}
        commits: dict[tuple[int, int], int] = {}
        found = (
            self._wrong_journals(delta, through)
            or self._wrong_producers(delta, through, commits)
            or self._wrong_groups(delta, through)
        )
        if found is None:
            self._through |= through
            self._commits |= commits
        return found

    def _wrong_journals(self, delta: Delta, through: dict[int, int]) -> str | None:
        if delta.documents < 0:
            return f"it counts {delta.documents} documents"
        for at, offset in delta.journals.tolist():
            if at in through:
                return f"place {at} is there twice"
            if offset < self._through[at]:
                return f"place {at} goes back from {self._through[at]} to {offset}"
            if offset > self._heads[at]:
                return f"place {at} is read through {offset}, and ends at {self._heads[at]}"
            through[at] = offset
        return None

    def _wrong_producers(
        self, delta: Delta, through: dict[int, int], commits: dict[tuple[int, int], int]
    ) -> str | None:
        for at, producer, commit, span, since, first in delta.producers.tolist():
            key = at, producer
            if (end := through.get(at)) is None:
                return f"{_name(*key)} is of a journal that is not in it"
            if producer == 0 or producer >> PRODUCER_BITS:
                return f"{_name(*key)} is not a 48-bit producer"
            if key in commits:
                return f"{_name(*key)} is there twice"
            if commit < (known := self._commits.get(key, 0)):
                return f"{_name(*key)} goes back from {known} to {commit}"
            if abs(span) > end:
                return f"{_name(*key)} has a span at {span}, read only through {end}"
            if not -1 <= since <= end:
                return f"{_name(*key)} began at {since}, read only through {end}"
            if since >= 0 and not 0 < first <= commit:
                return f"{_name(*key)} commits {first} first and {commit} last"
            commits[key] = commit
        return None

    def _wrong_groups(self, delta: Delta, through: dict[int, int]) -> str | None:
        for cohort, _, _, at, producer, clock, first, begin in delta.commits.tolist():
            if cohort != self._cohort(at & TAG_MAX):
                return f"place {at} is not in cohort {cohort}"
            if first > clock:
                return f"{_name(at, producer)} commits {clock}, which is before it began at {first}"
            end = through.get(at, 0)
            if not 0 <= begin <= end:
                return f"{_name(at, producer)} began at {begin}, read only through {end}"
        for cohort, _, _, journal, binding, *_, offset in delta.parts.tolist():
            if cohort != self._cohort(binding):
                return f"binding {binding} is not in cohort {cohort}"
            if offset < 0:
                return f"it names an ACK at {offset} of journal {journal}"
        return None

    def _cohort(self, binding: int) -> int | None:
        source = self._sources.by_tag.get(BindingTag(binding))
        return source.cohort if source else None


def unreadable(member: int, why: object) -> ProtocolError:
    return ProtocolError(
        f"member {member} sent a ProgressDelta that cannot be read: {why}",
        do="run the same version of Headrace on all members",
    )


def _name(at: int, producer: int) -> str:
    return f"place {at}: producer {format_producer(Producer(producer))}"
