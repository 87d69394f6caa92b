"""A ranking against a dictionary that is sorted."""

from __future__ import annotations

from random import Random

import pytest

from headrace.ids import JournalId, Offset
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.slice.ranking import Ranking
from headrace.shuffle.slice.read import Read
from tests.shuffle.builders import source


def read(place: int) -> Read:
    return Read(ReadStart(place, JournalId(1), "c/0000", 0, Offset(0), Offset(0)), source())


@pytest.mark.parametrize("seed", range(50))
def test_the_first_is_the_one_of_the_least_rank(seed: int) -> None:
    rng = Random(seed)
    reads = [read(place) for place in range(8)]
    ranking, ranks = Ranking(), dict[int, int]()
    for _ in range(300):
        each = rng.choice(reads)
        if rng.random() < 0.3:
            ranking.drop(each)
            ranks.pop(each.place, None)
        else:
            ranks[each.place] = rng.randrange(20)
            ranking.put(each, ranks[each.place])
        least = min(ranks.values(), default=INFINITE)
        assert ranking.least == least
        first = ranking.first
        assert (first is None) == (not ranks)
        assert first is None or ranks[first.place] == least
        assert len(ranking) == len(ranks)
        assert [each in ranking for each in reads] == [each.place in ranks for each in reads]


# proves G12
def test_reads_that_move_leave_nothing_behind() -> None:
    ranking = Ranking()
    stays, moves = read(1), read(2)
    ranking.put(stays, 0)
    for rank in range(10_000):
        ranking.put(moves, rank + 1)
    assert len(ranking._heap) < 200
    assert ranking.first is stays
