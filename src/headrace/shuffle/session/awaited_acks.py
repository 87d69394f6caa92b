"""ACKs that hints name and that nobody has read yet, by the place that should have them. Pure.

The Session looks at a place again when something about it changed: a Slice read more of it, or a
hint named another ACK there. It looks at a place that is read to its end every time, since
documents elsewhere may be so far ahead that it gives up the ACKs there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from headrace.ids import JournalId

T = TypeVar("T")

HintedPlace = tuple[JournalId, int]
"""A journal and a binding. Hints name a journal by its id: it may have no tag yet."""


class AwaitedAcks(Generic[T]):
    """By place and offset, the transactions that await the ACK there.

    An ACK has one transaction, unless hints contradict each other. `_offsets` has a heap of the
    offsets of each place. A heap may also have offsets that were removed.
    """

    def __init__(self) -> None:
        self._waiting: dict[HintedPlace, dict[int, tuple[T, ...]]] = {}
        self._offsets: dict[HintedPlace, list[int]] = {}
        self._touched: set[HintedPlace] = set()

    def __iter__(self) -> Iterator[tuple[HintedPlace, int, T]]:
        for hinted, waiting in self._waiting.items():
            for offset, transactions in waiting.items():
                for transaction in transactions:
                    yield hinted, offset, transaction

    def add(self, hinted: HintedPlace, offset: int, transaction: T) -> bool:
        """Return True if the transaction did not await this ACK before."""
        waiting = self._waiting.setdefault(hinted, {})
        self._touched.add(hinted)
        known = waiting.get(offset, ())
        if any(other is transaction for other in known):
            return False
        if not known:
            heappush(self._offsets.setdefault(hinted, []), offset)
        waiting[offset] = (*known, transaction)
        return True

    def touch(self, hinted: HintedPlace) -> None:
        """Have the place looked at again, if an ACK is awaited there."""
        if hinted in self._waiting:
            self._touched.add(hinted)

    def touch_all(self) -> None:
        self._touched.update(self._waiting)

    def places(self) -> list[HintedPlace]:
        return list(self._waiting)

    def touched(self) -> list[HintedPlace]:
        """Return the places to look at."""
        return list(self._touched)

    def settle(self, hinted: HintedPlace, *, stays_touched: bool) -> None:
        """The Session has looked at the place, and forgets it if no ACK is awaited there."""
        if not stays_touched:
            self._touched.discard(hinted)
        if not self._waiting.get(hinted, True):
            del self._waiting[hinted], self._offsets[hinted]
            self._touched.discard(hinted)

    def first(self, hinted: HintedPlace) -> tuple[int, tuple[T, ...]] | None:
        """Return the least awaited offset of the place, with its transactions."""
        offsets, waiting = self._offsets.get(hinted, []), self._waiting.get(hinted, {})
        while offsets and offsets[0] not in waiting:
            heappop(offsets)
        return (offsets[0], waiting[offsets[0]]) if offsets else None

    def acks(self, hinted: HintedPlace) -> list[tuple[int, tuple[T, ...]]]:
        """Return all awaited offsets of the place with their transactions, in no order."""
        return list(self._waiting[hinted].items())

    def remove(self, hinted: HintedPlace, offset: int) -> None:
        del self._waiting[hinted][offset]
