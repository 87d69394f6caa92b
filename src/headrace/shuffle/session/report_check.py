"""Checks what Slices report. Pure.

A report becomes part of a checkpoint, and one that says too much would lose documents. So the
Session compares each report with what it must describe: a continuous read of each place, from
where it was started, and no further than the journal's head.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ProtocolError
from headrace.frontier import BindingTag, Place, binding_tag
from headrace.ids import PRODUCER_BITS, Producer, format_producer
from headrace.shuffle.binding import Sources
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.session.assignment import Assignment
from headrace.shuffle.session.producer_row import PlaceRow


class ReportCheck:
    """Compares reports with the rows of places, and moves the reported positions there."""

    def __init__(
        self, sources: Sources, assignment: Assignment, places: Mapping[Place, PlaceRow]
    ) -> None:
        self._sources = sources
        self._assignment = assignment
        self._places = places

    def accept(self, delta: ProgressReport) -> str | None:
        """Return what cannot be true of a report. If there is nothing, the report is accepted."""
        through: dict[Place, int] = {}
        commits: dict[tuple[Place, int], int] = {}
        flaw = (
            self._wrong_journals(delta, through)
            or self._wrong_producers(delta, through, commits)
            or self._wrong_transactions(delta, through)
        )
        if flaw is None:
            for place, offset in through.items():
                self._places[place].reported_through = offset
            for (place, producer), commit in commits.items():
                self._places[place].producer(producer).reported_commit = commit
        return flaw

    def _wrong_journals(self, delta: ProgressReport, through: dict[Place, int]) -> str | None:
        if delta.documents < 0:
            return f"it counts {delta.documents} documents"
        for place, offset in delta.journals.tolist():
            known, head = self._places[place].reported_through, self._assignment.head_of(place)
            if place in through:
                return f"place {place} is there twice"
            if offset < known:
                return f"place {place} goes back from {known} to {offset}"
            if head is None or offset > head:
                return f"place {place} is read through {offset}, and ends at {head}"
            through[place] = offset
        return None

    def _wrong_producers(
        self,
        delta: ProgressReport,
        through: dict[Place, int],
        commits: dict[tuple[Place, int], int],
    ) -> str | None:
        for place, producer, commit, span, since, first in delta.producers.tolist():
            key = place, producer
            if (end := through.get(place)) is None:
                return f"{_name(*key)} is of a journal that is not in it"
            if producer == 0 or producer >> PRODUCER_BITS:
                return f"{_name(*key)} is not a 48-bit producer"
            if key in commits:
                return f"{_name(*key)} is there twice"
            if commit < (known := self._reported_commit(place, producer)):
                return f"{_name(*key)} goes back from {known} to {commit}"
            if abs(span) > end:
                return f"{_name(*key)} has a span at {span}, read only through {end}"
            if not -1 <= since <= end:
                return f"{_name(*key)} began at {since}, read only through {end}"
            if since >= 0 and not 0 < first <= commit:
                return f"{_name(*key)} commits {first} first and {commit} last"
            commits[key] = commit
        return None

    def _wrong_transactions(self, delta: ProgressReport, through: dict[Place, int]) -> str | None:
        for cohort, _, _, place, producer, clock, first, begin in delta.commits.tolist():
            if cohort != self._cohort(binding_tag(place)):
                return f"place {place} is not in cohort {cohort}"
            if first > clock:
                return (
                    f"{_name(place, producer)} commits {clock}, which is before it began at {first}"
                )
            end = through.get(place, 0)
            if not 0 <= begin <= end:
                return f"{_name(place, producer)} began at {begin}, read only through {end}"
        for cohort, _, _, journal, binding, *_, offset in delta.parts.tolist():
            if cohort != self._cohort(binding):
                return f"binding {binding} is not in cohort {cohort}"
            if offset < 0:
                return f"it names an ACK at {offset} of journal {journal}"
        return None

    def _reported_commit(self, place: Place, producer: int) -> int:
        row = self._places[place].producers.get(producer)
        return row.reported_commit if row else 0

    def _cohort(self, binding: int) -> int | None:
        source = self._sources.by_tag.get(BindingTag(binding))
        return source.cohort if source else None


def unreadable(member: int, why: object) -> ProtocolError:
    return ProtocolError(
        f"member {member} sent a ProgressDelta that cannot be read: {why}",
        do="run the same version of Headrace on all members",
    )


def _name(place: int, producer: int) -> str:
    return f"place {place}: producer {format_producer(Producer(producer))}"
