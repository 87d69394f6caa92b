"""ACKs that hints name and that are not read, by where they stand. Pure.

A journal is looked at when something of it changed: it was read further, or another of its ACKs is
awaited. One that is at its end is looked at every time, since documents elsewhere may be so far on
that its ACKs are given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

Stand = tuple[int, int]
"""A journal and a binding under which it is read."""


class AwaitedAcks(Generic[T]):
    """`_waiting` has, by offset, the transactions that await the ACK there: one, unless hints
    contradict each other. `_offsets` is a heap of these offsets, and of some that are removed."""

    def __init__(self) -> None:
        self._waiting: dict[Stand, dict[int, tuple[T, ...]]] = {}
        self._offsets: dict[Stand, list[int]] = {}
        self._touched: set[Stand] = set()

    def __iter__(self) -> Iterator[tuple[Stand, int, T]]:
        for stand, waiting in self._waiting.items():
            for offset, items in waiting.items():
                for item in items:
                    yield stand, offset, item

    def add(self, stand: Stand, offset: int, item: T) -> bool:
        """Whether it was not awaited before."""
        waiting = self._waiting.setdefault(stand, {})
        self._touched.add(stand)
        known = waiting.get(offset, ())
        if any(each is item for each in known):
            return False
        if not known:
            heappush(self._offsets.setdefault(stand, []), offset)
        waiting[offset] = (*known, item)
        return True

    def touch(self, stand: Stand) -> None:
        if stand in self._waiting:
            self._touched.add(stand)

    def touch_all(self) -> None:
        self._touched.update(self._waiting)

    def stands(self) -> list[Stand]:
        return list(self._waiting)

    def to_look_at(self) -> list[Stand]:
        return list(self._touched)

    def looked_at(self, stand: Stand, *, again: bool) -> None:
        """`again`: it is to be looked at the next time too, whatever happens."""
        if not again:
            self._touched.discard(stand)
        if not self._waiting.get(stand, True):
            del self._waiting[stand], self._offsets[stand]
            self._touched.discard(stand)

    def first(self, stand: Stand) -> tuple[int, tuple[T, ...]] | None:
        """Offset and transactions of the first that is awaited."""
        offsets, waiting = self._offsets.get(stand, []), self._waiting.get(stand, {})
        while offsets and offsets[0] not in waiting:
            heappop(offsets)
        return (offsets[0], waiting[offsets[0]]) if offsets else None

    def at(self, stand: Stand) -> list[tuple[int, tuple[T, ...]]]:
        """Offsets and transactions of all that are awaited there, in no order."""
        return list(self._waiting[stand].items())

    def remove(self, stand: Stand, offset: int) -> None:
        del self._waiting[stand][offset]
