"""When posting lists are split, written again and dissolved, row by row."""

from __future__ import annotations

import numpy as np

from headrace.settings import VectorSettings
from headrace.stores.vectors.distance import Metric, Positions
from headrace.stores.vectors.posting_lists import TAIL, ListEditor, PostingLists
from headrace.stores.vectors.vector_matrix import VectorMatrix


class Lists:
    """Posting lists of numbers on a line, and the flushes that change them."""

    def __init__(self, **settings: int) -> None:
        self.settings = VectorSettings(**settings)
        self.lists = PostingLists()
        self._matrix = VectorMatrix(2)
        self._numbers: list[float] = []
        self._alive = np.empty(0, np.bool_)
        self._next = 1, 1

    def add(self, *numbers: float) -> ListEditor:
        """Add a row for each number, and flush."""
        rows = np.arange(len(self._numbers), len(self._numbers) + len(numbers))
        self._numbers += numbers
        self._alive = np.append(self._alive, np.ones(len(numbers), np.bool_))
        editor = ListEditor(
            Metric.L2,
            self.settings,
            self._matrix.view(),
            self._alive,
            lambda wanted: np.array([[self._numbers[row], 0] for row in wanted], np.float32),
            *self._next,
            dict(self.lists.lists),
            dict(self.lists.centroids),
        )
        editor.place(rows)
        written = editor.merge_chunks()
        start = self._matrix.used
        for each in written:
            self._matrix.append(editor.vectors_of(each.rows), each.rows)
        self.lists = editor.settle(written, start)
        self._next = editor.next_list, editor.next_chunk
        assert sorted(row for each in self.lists.lists for row in self.live(each)) == sorted(
            np.flatnonzero(self._alive)
        )
        return editor

    def kill(self, number: int, count: int) -> None:
        """Let that many rows of a list die."""
        self._alive = self._alive.copy()
        self._alive[self.live(number)[:count]] = False
        self.lists = self.lists.kill(np.full(count, number))

    def live(self, number: int) -> Positions:
        """Return the live rows that a list holds."""
        rows = self._matrix.view().rows
        held = [rows[each.start : each.stop] for each in self.lists.lists[number].chunks]
        found = np.concatenate([np.empty(0, np.int64), *held])
        living: Positions = found[self._alive[found]]
        return living

    def list_of(self, number: float) -> int:
        """Return the list that holds the last row with that number."""
        row = max(row for row, each in enumerate(self._numbers) if each == number)
        return next(each for each in self.lists.lists if row in self.live(each))


def test_the_tail_holds_as_many_rows_as_it_may_and_no_more() -> None:
    lists = Lists(list_rows=4, tail_rows_max=3)
    lists.add(1, 2)
    lists.add(3)
    assert lists.lists.lists.keys() == {TAIL}
    lists.add(4)
    assert lists.lists.lists[TAIL].live == 0
    assert len(lists.lists.centroids) == 1
    lists.add(5, 6, 7)
    assert lists.lists.lists[TAIL].live == 3
    lists.add(8)
    assert lists.lists.lists[TAIL].live == 0


def test_a_list_is_split_when_it_has_more_than_twice_its_rows() -> None:
    lists = Lists(list_rows=4, tail_rows_max=0, split_neighbors=0)
    lists.add(*range(4))
    lists.add(*range(4, 8))
    assert [(number, each.live) for number, each in lists.lists.lists.items() if number] == [(1, 8)]
    lists.add(8)
    assert len(lists.lists.centroids) > 1
    assert 1 not in lists.lists.centroids


def test_a_list_is_split_together_with_its_nearest_ones_and_no_other() -> None:
    lists = Lists(list_rows=4, tail_rows_max=0, split_neighbors=1)
    lists.add(*(at + n for at in (0, 100, 1_000, 9_000) for n in range(4)))
    zero, near, middle, last = (lists.list_of(at) for at in (0, 100, 1_000, 9_000))
    assert len({zero, near, middle, last}) == 4
    editor = lists.add(*(n / 10 for n in range(5)))
    assert editor.old_centroids == {zero, near}
    assert {middle, last} < lists.lists.centroids.keys()


def test_a_list_that_lost_most_of_its_rows_is_dissolved() -> None:
    lists = Lists(list_rows=32, tail_rows_max=0, split_neighbors=0)
    lists.add(*range(40), *range(9_000, 9_040))
    zero, other = lists.list_of(0), lists.list_of(9_000)
    assert zero != other
    lists.kill(zero, 31)
    lists.add(9_040)
    assert (lists.lists.lists[zero].live, lists.lists.lists[zero].stored) == (9, 40)
    lists.kill(zero, 5)
    lists.add(9_041)
    assert (lists.lists.lists[zero].live, lists.lists.lists[zero].stored) == (4, 4)
    lists = Lists(list_rows=32, tail_rows_max=0, split_neighbors=0)
    lists.add(*range(40), *range(9_000, 9_040))
    zero = lists.list_of(0)
    lists.kill(zero, 37)
    assert lists.add(9_041).old_centroids == {zero}
    assert zero not in lists.lists.lists
