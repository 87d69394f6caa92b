"""Posting lists: vectors that are near one centroid, stored and searched together. Pure.

New rows go to the *tail*, a list without a centroid. When it is full, its rows move to the lists
with the nearest centroids. A list that grows too large is split, and one of which too little is
left is dissolved. Each list consists of chunks: a chunk is one value in storage, and one run of
slots in memory. A chunk never changes; when chunks are merged or rows leave, others replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from headrace.settings import VectorSettings
from headrace.stores.vectors.clusters import divided, grouped, nearest_centroids, prepared
from headrace.stores.vectors.distance import Metric, Positions, Vectors, ranks, squared_norms
from headrace.stores.vectors.filters import Mask
from headrace.stores.vectors.vector_matrix import MatrixView

TAIL = 0
_DEAD_MIN = 32
"""A list is not rewritten for fewer dead rows."""


@dataclass(frozen=True, slots=True)
class ListChunk:
    """A run of slots, which storage holds under the numbers of the list and of the chunk."""

    number: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class PostingList:
    chunks: tuple[ListChunk, ...] = ()
    live: int = 0
    """Rows that were neither deleted nor replaced."""

    @property
    def stored(self) -> int:
        return sum(each.size for each in self.chunks)


@dataclass(frozen=True)
class PostingLists:
    """All lists as of one moment."""

    lists: dict[int, PostingList] = field(default_factory=lambda: {TAIL: PostingList()})
    centroids: dict[int, Vectors] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> Positions:
        """The lists that have a centroid."""
        return np.fromiter(self.centroids, np.int64, len(self.centroids))

    @cached_property
    def _matrix(self) -> Vectors:
        """Their centroids, in the same order."""
        return np.stack(list(self.centroids.values()))

    @cached_property
    def _around_center(self) -> tuple[Vectors, Vectors, Vectors]:
        """The mean of the centroids, the centroids as seen from there, and their squared lengths.

        Far from zero, float32 would lose the distances in the lengths.
        """
        center = self._matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
        moved = self._matrix - center
        return center, moved, squared_norms(moved)

    def by_distance(self, metric: Metric, query: Vectors) -> Positions:
        """Return the places of the centroids, the nearest to the query first."""
        if metric is Metric.L2:
            center, moved, squares = self._around_center
            away = ranks(Metric.L2, moved @ (query - center), squares)
        else:
            # A centroid of directions is compared as it is: its length says how alike they are.
            away = -(self._matrix @ query)
        order: Positions = np.argsort(away, kind="stable")
        return order

    @cached_property
    def live(self) -> Positions:
        """How many live rows each of them has."""
        return np.fromiter((self.lists[each].live for each in self.centroids), np.int64)

    def kill(self, numbers: Positions) -> PostingLists:
        """Return the lists with a live row less for each time that a number is named."""
        lists = dict(self.lists)
        for number, rows in grouped(numbers):
            lists[number] = replace(lists[number], live=lists[number].live - len(rows))
        return PostingLists(lists, self.centroids)


@dataclass(frozen=True, slots=True)
class WrittenChunk:
    """Rows that become one chunk."""

    list: int
    number: int
    rows: Positions


@dataclass
class ListEditor:
    """Changes lists for one flush: `place`, then `merge_chunks`, then `settle`."""

    metric: Metric
    settings: VectorSettings
    matrix: MatrixView
    alive: Mask
    """Which rows live after the flush, the new ones included."""
    vectors_of: Callable[[Positions], Vectors]
    next_list: int
    next_chunk: int
    lists: dict[int, PostingList]
    centroids: dict[int, Vectors]
    added: dict[int, list[Positions]] = field(default_factory=dict)
    dropped: dict[tuple[int, int], ListChunk] = field(default_factory=dict)
    """Chunks that storage must forget, by list and number."""
    new_centroids: set[int] = field(default_factory=set)
    old_centroids: set[int] = field(default_factory=set)

    def place(self, rows: Positions) -> None:
        """Find a list for each new row, and mend the lists that have too many dead ones."""
        scattered = [self._empty(number) for number in self._thinned()]
        tail = self.lists[TAIL]
        waiting = sum(map(len, scattered)) + len(rows)
        if self._is_small(tail.live + waiting):
            scattered += [self._empty(number) for number in list(self.centroids)]
            self._add(TAIL, np.concatenate([*scattered, rows]))
            return
        if tail.live + len(rows) <= self.settings.tail_rows_max:
            self._add(TAIL, rows)
        else:
            scattered += [self._empty(TAIL), rows]
        self._scatter(np.concatenate([np.empty(0, np.int64), *scattered]))

    def _is_small(self, outside: int) -> bool:
        """True if so few rows are left, with those outside of lists, that the tail holds them."""
        left = sum(self.lists[number].live for number in self.centroids)
        limit = self.settings.tail_rows_max
        return left + outside <= (limit // 8 if self.centroids else limit)

    def _thinned(self) -> Iterable[int]:
        """Yield the lists that are to be dissolved; write those again that are worth keeping."""
        for number, each in list(self.lists.items()):
            dead = each.stored - each.live
            if dead < _DEAD_MIN or dead < each.live:
                continue
            if number != TAIL and each.live < self.settings.list_rows // 8:
                yield number
            else:
                self._add(number, self._cleared(number))

    def _cleared(self, number: int) -> Positions:
        """Take all chunks from a list; return its live rows."""
        rows = self._live_rows(self.lists[number].chunks)
        self.dropped |= {(number, each.number): each for each in self.lists[number].chunks}
        self.lists[number] = PostingList()
        added = self.added.pop(number, [])
        return np.concatenate([rows, *added])

    def _empty(self, number: int) -> Positions:
        """Remove a list; return its live rows. The tail stays, without any."""
        rows = self._cleared(number)
        if number != TAIL:
            del self.lists[number], self.centroids[number]
            if number in self.new_centroids:
                self.new_centroids.remove(number)
            else:
                self.old_centroids.add(number)
        return rows

    def _live_rows(self, chunks: Iterable[ListChunk]) -> Positions:
        runs = [self.matrix.rows[each.start : each.stop] for each in chunks]
        rows = np.concatenate([np.empty(0, np.int64), *runs])
        found: Positions = rows[self.alive[rows]]
        return found

    def _add(self, number: int, rows: Positions) -> None:
        if len(rows):
            self.added.setdefault(number, []).append(rows)
            old = self.lists[number]
            self.lists[number] = replace(old, live=old.live + len(rows))

    def _scatter(self, rows: Positions) -> None:
        """Add rows to the lists with the nearest centroids, and split those that grow too large."""
        if not len(rows):
            return
        vectors = prepared(self.metric, self.vectors_of(rows))
        if not self.centroids:
            self._found(vectors, rows)
            return
        numbers = list(self.centroids)
        nearest = nearest_centroids(vectors, np.stack(list(self.centroids.values())))
        for place, members in grouped(nearest):
            self._add(numbers[place], rows[members])
        for number in numbers:
            if number in self.lists and self.lists[number].live > 2 * self.settings.list_rows:
                self._split(number)

    def _split(self, number: int) -> None:
        """Divide the rows of a list anew, together with those of its nearest lists.

        Rows near the border to another list may be nearer to the new centroids than to its own.
        """
        numbers, centroids = list(self.centroids), np.stack(list(self.centroids.values()))
        away = squared_norms(centroids - self.centroids[number])
        chosen = np.argsort(away, kind="stable")[: 1 + self.settings.split_neighbors]
        rows = np.concatenate([self._empty(numbers[place]) for place in chosen.tolist()])
        self._found(prepared(self.metric, self.vectors_of(rows)), rows)

    def _found(self, vectors: Vectors, rows: Positions) -> None:
        """Make lists of rows that have none."""
        rng = np.random.default_rng(self.next_list)
        for centroid, members in divided(vectors, self.settings.list_rows, rng):
            number, self.next_list = self.next_list, self.next_list + 1
            self.centroids[number] = centroid
            self.new_centroids.add(number)
            self.lists[number] = PostingList()
            self._add(number, rows[members])

    def merge_chunks(self) -> list[WrittenChunk]:
        """Return the chunks to write. Each is at most half as large as the one before it."""
        written = []
        for number, added in self.added.items():
            rows = np.concatenate(added)
            chunks = list(self.lists[number].chunks)
            while chunks and 2 * len(rows) > chunks[-1].size:
                last = chunks.pop()
                self.dropped[number, last.number] = last
                rows = np.concatenate([self._live_rows([last]), rows])
            self.lists[number] = replace(self.lists[number], chunks=tuple(chunks))
            written.append(WrittenChunk(number, self.next_chunk, rows))
            self.next_chunk += 1
        return written

    def settle(self, written: Iterable[WrittenChunk], start: int) -> PostingLists:
        """Return the lists, when the written chunks lie in slots from `start` on."""
        for each in written:
            old, stop = self.lists[each.list], start + len(each.rows)
            chunk = ListChunk(each.number, start, stop)
            self.lists[each.list] = replace(old, chunks=(*old.chunks, chunk))
            start = stop
        return PostingLists(self.lists, self.centroids)
