"""Transactions that are not yet known to be complete. Pure.

A group is one transaction within one cohort: the ACKs it has there, and of those that were read,
the clock of the first document in that place.

An ACK that stands in a journal is waited for however long it takes to read up to it: Slices advance
at their own pace through years of documents. One that stands nowhere may never come. It is given up
once the journals that named it have documents whose clocks are further on than the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace.ids import JournalId
from headrace.shuffle.delta import Delta


class Ack(Enum):
    """How an ACK stands that a hint names."""

    READ = "it is read, or can never be"
    COMING = "the journal has it, or more before it"
    NOWHERE = "the journal is read to its end and does not have it, or is not there"


Find = Callable[[JournalId, int, int], Ack]
"""The ACK at an offset of a journal, under a binding."""

GroupId = tuple[int, int, int]
"""Its cohort, and the least (producer, clock) of its ACKs."""


class Hold(NamedTuple):
    """What a pending transaction leaves to be shown of a producer in a place."""

    cap: int
    """The greatest clock that may be shown."""
    begin: int
    """Where the transaction begins in the place; zero if no ACK of it was read there."""


class _Span(NamedTuple):
    """A transaction in one place, of one producer."""

    first: int
    """The clock of its first document."""
    begin: int
    """The offset of that."""


@dataclass(slots=True)
class _Group:
    cohort: int
    clocks: dict[int, int] = field(default_factory=dict)
    """The clock of each producer's ACKs."""
    spans: dict[tuple[int, int], _Span] = field(default_factory=dict)
    """By place and producer, of the ACKs that were read."""
    parts: set[tuple[int, int, int]] = field(default_factory=set)
    """Journal, binding and offset of ACKs that some Slice could not say it had read."""


class Groups:
    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._groups: dict[GroupId, _Group] = {}
        self._oldest: dict[tuple[int, int], _Group] = {}
        self._newest: dict[int, int] = {}
        """By place, the greatest clock that is committed there."""

    def fold(self, delta: Delta) -> None:
        """Take over what a Slice reports of transactions."""
        for at, clock in delta.producers[["place", "last_commit"]].tolist():
            self._newest[at] = max(self._newest.get(at, 0), clock)
        for cohort, g_producer, g_clock, at, producer, clock, *span in delta.commits.tolist():
            group = self._group((cohort, g_producer, g_clock))
            group.clocks[producer] = clock
            group.spans[at, producer] = _Span(*span)
        for (
            cohort,
            g_producer,
            g_clock,
            journal,
            binding,
            producer,
            clock,
            offset,
        ) in delta.parts.tolist():
            group = self._group((cohort, g_producer, g_clock))
            group.clocks[producer] = clock
            group.parts.add((journal, binding, offset))

    def _group(self, id: GroupId) -> _Group:
        if (found := self._groups.get(id)) is None:
            found = self._groups[id] = _Group(id[0])
        return found

    def complete(self, shown: Mapping[tuple[int, int], int]) -> None:
        """Forget the groups of which anything was shown: `shown` has the clocks up to which."""
        self._groups = {
            id: group
            for id, group in self._groups.items()
            if not any(shown.get(key, 0) >= group.clocks[key[1]] for key in group.spans)
        }

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Those places are not read any more."""
        self._newest = {at: clock for at, clock in self._newest.items() if not is_gone(at)}

    def settle(self, find: Find) -> dict[tuple[int, int], int]:
        """Forget the groups that are complete; returns, by cohort and producer, the clock of the
        oldest that is not.

        A group is also held by an older one of any of its producers, and so on: what is left to
        be shown is the greatest set in which nothing waits for anything outside.
        """
        pending = {id: g for id, g in self._groups.items() if not self._is_complete(g, find)}
        rest = {id: g for id, g in self._groups.items() if id not in pending}
        oldest: dict[tuple[int, int], _Group] = {}
        found = list(pending.values())
        while found:
            for group in found:
                for producer, clock in group.clocks.items():
                    key = group.cohort, producer
                    known = oldest.get(key)
                    if known is None or clock < known.clocks[producer]:
                        oldest[key] = group
            held = {id: group for id, group in rest.items() if _is_held(group, oldest)}
            rest = {id: group for id, group in rest.items() if id not in held}
            pending |= held
            found = list(held.values())
        self._groups = pending
        self._oldest = oldest
        return {key: group.clocks[key[1]] for key, group in oldest.items()}

    def hold(
        self, cohort: int, producer: int, place: int, floors: Mapping[tuple[int, int], int]
    ) -> Hold | None:
        """What holds the producer back in the place; None if nothing does."""
        if (clock := floors.get((cohort, producer))) is None:
            return None
        span = self._oldest[cohort, producer].spans.get((place, producer), _Span(clock, 0))
        return Hold(span.first - 1, span.begin)

    def waiting(self, find: Find) -> Iterator[tuple[int, int]]:
        """Each producer of a pending group, with a journal that the group waits for."""
        for group in self._groups.values():
            for journal, binding, offset in group.parts:
                if find(JournalId(journal), binding, offset) is not Ack.READ:
                    yield from ((producer, journal) for producer in group.clocks)
                    break

    def _is_complete(self, group: _Group, find: Find) -> bool:
        for journal, binding, offset in group.parts:
            found = find(JournalId(journal), binding, offset)
            if found is Ack.COMING or (found is Ack.NOWHERE and not self._is_late(group)):
                return False
        return True

    def _is_late(self, group: _Group) -> bool:
        """Whether the journals in which it was read are beyond the horizon."""
        newest = max((self._newest.get(at, 0) for at, _ in group.spans), default=0)
        return newest - max(group.clocks.values()) > self._horizon


def _is_held(group: _Group, oldest: Mapping[tuple[int, int], _Group]) -> bool:
    for producer, clock in group.clocks.items():
        older = oldest.get((group.cohort, producer))
        if older is not None and older.clocks[producer] < clock:
            return True
    return False
