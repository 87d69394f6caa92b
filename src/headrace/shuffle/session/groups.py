"""Transactions that are not yet known to be complete. Pure.

A group is one transaction within one cohort: the ACKs it has there, and of those that were read,
the clock of the first document in that place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.ids import JournalId
from headrace.shuffle.delta import Delta

IsRead = Callable[[JournalId, int, int], bool]
"""Of the ACK at an offset of a journal, under a binding."""

GroupId = tuple[int, int, int]
"""Its cohort, and the least (producer, clock) of its ACKs."""


@dataclass(slots=True)
class _Group:
    cohort: int
    clocks: dict[int, int] = field(default_factory=dict)
    """The clock of each producer's ACKs."""
    firsts: dict[tuple[int, int], int] = field(default_factory=dict)
    """By place and producer, of the ACKs that were read."""
    parts: set[tuple[int, int, int]] = field(default_factory=set)
    """Journal, binding and offset of ACKs that some Slice could not say it had read."""


class Groups:
    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._groups: dict[GroupId, _Group] = {}
        self._oldest: dict[tuple[int, int], _Group] = {}
        self._newest_clock = 0

    def fold(self, delta: Delta) -> None:
        """Take over what a Slice reports of transactions."""
        for cohort, g_producer, g_clock, at, producer, clock, first in delta.commits.tolist():
            group = self._group((cohort, g_producer, g_clock))
            group.clocks[producer] = clock
            group.firsts[at, producer] = first
            self._newest_clock = max(self._newest_clock, clock)
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

    def settle(self, is_read: IsRead) -> dict[tuple[int, int], int]:
        """Forget the groups that are complete; returns, by cohort and producer, the clock of the
        oldest that is not.

        A group is also held by an older one of any of its producers, and so on: what is left to
        be shown is the greatest set in which nothing waits for anything outside.
        """
        pending = {id: g for id, g in self._groups.items() if not self._is_complete(g, is_read)}
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

    def cap(
        self, cohort: int, producer: int, place: int, floors: Mapping[tuple[int, int], int]
    ) -> int | None:
        """The greatest clock that may be shown of the producer in the place; None for any."""
        if (clock := floors.get((cohort, producer))) is None:
            return None
        first = self._oldest[cohort, producer].firsts.get((place, producer), clock)
        return first - 1

    def waiting(self, is_read: IsRead) -> Iterator[tuple[int, int]]:
        """Each producer of a pending group, with a journal that the group waits for."""
        for group in self._groups.values():
            for journal, binding, offset in group.parts:
                if not is_read(JournalId(journal), binding, offset):
                    yield from ((producer, journal) for producer in group.clocks)
                    break

    def _is_complete(self, group: _Group, is_read: IsRead) -> bool:
        if self._newest_clock - max(group.clocks.values()) > self._horizon:
            return True
        return all(
            is_read(JournalId(journal), binding, offset) for journal, binding, offset in group.parts
        )


def _is_held(group: _Group, oldest: Mapping[tuple[int, int], _Group]) -> bool:
    for producer, clock in group.clocks.items():
        older = oldest.get((group.cohort, producer))
        if older is not None and older.clocks[producer] < clock:
            return True
    return False
