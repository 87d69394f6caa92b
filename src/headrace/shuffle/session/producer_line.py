"""The pending transactions of one producer, in the order of their clocks. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

_REMOVED_MAX = 64
"""The lists keep this many removed entries, and as many as there are others, before they shrink."""


class ProducerLine(Generic[T]):
    """Two lists that go together: `_clocks` ascends. Entries before `_start` are removed."""

    __slots__ = ("_clocks", "_items", "_start")

    def __init__(self) -> None:
        self._clocks: list[int] = []
        self._items: list[T] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._items) - self._start

    def __iter__(self) -> Iterator[T]:
        """Yield the items, the oldest first."""
        return islice(self._items, self._start, None)

    @property
    def oldest(self) -> T:
        return self._items[self._start]

    @property
    def oldest_clock(self) -> int:
        return self._clocks[self._start]

    def insert(self, clock: int, item: T) -> None:
        index = bisect_left(self._clocks, clock, self._start)
        self._clocks.insert(index, clock)
        self._items.insert(index, item)

    def remove(self, clock: int, item: T) -> None:
        index = bisect_left(self._clocks, clock, self._start)
        while self._items[index] is not item:
            index += 1
        if index > self._start:
            del self._clocks[index], self._items[index]
            return
        self._start += 1
        if self._start > max(_REMOVED_MAX, len(self)):
            del self._clocks[: self._start], self._items[: self._start]
            self._start = 0

    def older_than(self, clock: int) -> Iterator[T]:
        """Yield the items of lesser clocks, the oldest first."""
        return islice(self._items, self._start, bisect_left(self._clocks, clock, self._start))
