"""Reads in the order of a number each. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from headrace.shuffle.binding import INFINITE
from headrace.shuffle.slice.read import Read

_STALE_MIN = 64


class Ranking:
    """The read of the least rank is the first. One that is put again moves.

    Entries of the heap outlive what they say; one that is met and does not hold is dropped.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Read]] = []
        self._entries: dict[int, int] = {}
        """By place, the number of the entry that holds."""
        self._made = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, read: Read) -> bool:
        return read.place in self._entries

    @property
    def least(self) -> int:
        """The rank of the first; infinite if there is none."""
        heap, entries = self._heap, self._entries
        while heap:
            rank, place, number, _ = heap[0]
            if entries.get(place) == number:
                return rank
            heappop(heap)
        return INFINITE

    @property
    def first(self) -> Read | None:
        return self._heap[0][3] if self.least < INFINITE else None

    def put(self, read: Read, rank: int) -> None:
        self._made += 1
        self._entries[read.place] = self._made
        heappush(self._heap, (rank, read.place, self._made, read))
        if len(self._heap) > 2 * len(self._entries) + _STALE_MIN:
            self._heap = [each for each in self._heap if self._entries.get(each[1]) == each[2]]
            heapify(self._heap)

    def drop(self, read: Read) -> None:
        self._entries.pop(read.place, None)
