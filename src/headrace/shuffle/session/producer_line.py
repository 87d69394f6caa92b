"""The pending transactions of one producer, in the order of their clocks. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOSE_MAX = 64
"""This many entries may stand before the first before they are cut off, and half of all of them."""


class ProducerLine(Generic[T]):
    """`_clocks` ascends and goes with `_items`; what stands before `_start` is removed."""

    __slots__ = ("_clocks", "_items", "_start")

    def __init__(self) -> None:
        self._clocks: list[int] = []
        self._items: list[T] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._items) - self._start

    @property
    def oldest(self) -> T:
        return self._items[self._start]

    @property
    def oldest_clock(self) -> int:
        return self._clocks[self._start]

    def insert(self, clock: int, item: T) -> None:
        at = bisect_left(self._clocks, clock, self._start)
        self._clocks.insert(at, clock)
        self._items.insert(at, item)

    def remove(self, clock: int, item: T) -> None:
        at = bisect_left(self._clocks, clock, self._start)
        while self._items[at] is not item:
            at += 1
        if at > self._start:
            del self._clocks[at], self._items[at]
            return
        self._start += 1
        if self._start > max(_LOOSE_MAX, len(self)):
            del self._clocks[: self._start], self._items[: self._start]
            self._start = 0

    def older_than(self, clock: int) -> Iterator[T]:
        """Those of lesser clocks, the oldest first."""
        return islice(self._items, self._start, bisect_left(self._clocks, clock, self._start))
