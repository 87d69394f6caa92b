"""Which transactions are complete, and what holds the others."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ids import JournalId
from headrace.shuffle.delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, Delta
from headrace.shuffle.session.groups import Ack, Find, Groups, Hold

HORIZON = 1000
GroupOf = tuple[int, int, int]


def group(
    id: GroupOf,
    commits: list[tuple[int, int, int, int]],
    parts: list[tuple[int, int, int]] | None = None,
) -> Delta:
    """`commits` are (place, producer, clock, first), `parts` (journal, producer, clock).

    In every place the transaction begins at ten times the number of that.
    """
    rows = [(*id, place, p, clock, first, 10 * place) for place, p, clock, first in commits]
    open_parts = [(*id, journal, 0, p, clock, 0) for journal, p, clock in parts or []]
    return Delta(commits=np.array(rows, COMMIT_ROW), parts=np.array(open_parts, PART_ROW))


def read(*journals: int, there: bool = True) -> Find:
    """These are read to their ends; the ACKs in others stand there, or nowhere."""

    def find(journal: JournalId, binding: int, offset: int) -> Ack:
        if journal in journals:
            return Ack.READ
        return Ack.COMING if there else Ack.NOWHERE

    return find


def test_a_group_with_a_part_that_is_not_read_holds_its_producer() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    floors = groups.settle(read())
    assert floors == {(0, 1): 20}
    assert groups.hold(0, 1, 5, floors) == Hold(14, 50), "just below its first document there"
    assert groups.hold(0, 1, 6, floors) == Hold(19, 0), "elsewhere, just below its clock"
    assert groups.hold(0, 2, 5, floors) is None
    assert groups.hold(1, 1, 5, floors) is None, "another cohort"
    assert list(groups.waiting(read())) == [(1, 2)]
    assert groups.settle(read(2)) == {}
    assert list(groups.waiting(read(2))) == []


def test_all_parts_must_be_read() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20), (3, 1, 20)]))
    assert groups.settle(read(2)) == {(0, 1): 20}
    assert groups.settle(read(2, 3)) == {}


# proves G9
def test_the_oldest_pending_group_of_a_producer_counts() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25)], [(3, 1, 30)]))
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    floors = groups.settle(read(3))
    assert floors == {(0, 1): 20}
    assert groups.hold(0, 1, 5, floors) == Hold(14, 50)
    floors = groups.settle(read(2))
    assert groups.settle(read(2, 3)) == {}


# proves G9
def test_what_is_complete_is_held_by_an_older_one_of_any_of_its_producers() -> None:
    """1 waits; 2 shares a transaction with 1 after that; 3 one with 2 after that."""
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(9, 1, 20)]))
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25), (6, 2, 31, 26)]))
    groups.fold(group((0, 2, 40), [(6, 2, 40, 35), (7, 3, 41, 36)]))
    floors = groups.settle(read())
    assert floors == {(0, 1): 20, (0, 2): 31, (0, 3): 41}
    assert groups.hold(0, 3, 7, floors) == Hold(35, 70)
    assert groups.settle(read(9)) == {}


# proves G11
def test_an_earlier_transaction_is_not_held_by_a_later_one() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 2, 21, 16)]))
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25)], [(9, 1, 30)]))
    assert groups.settle(read()) == {(0, 1): 30}


def test_two_that_wait_for_each_other_are_complete_together() -> None:
    """Producers 1 and 2 commit two transactions, whose clocks cross."""
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 2, 40, 35)]))
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25), (6, 2, 30, 25)]))
    assert groups.settle(read()) == {}


def test_cohorts_are_apart() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(group((1, 1, 20), [(6, 1, 20, 15)], [(3, 1, 20)]))
    assert groups.settle(read(3)) == {(0, 1): 20}
    assert groups.settle(read(2)) == {}


def committed(place: int, clock: int) -> Delta:
    """Something of another producer, alone."""
    return Delta(producers=np.array([(place, 7, clock, -1, -1)], PROGRESS_ROW))


@pytest.mark.parametrize(
    ("place", "clock", "there", "waits"),
    [
        (5, 1020, False, True),
        (5, 1021, False, False),
        (6, 1 << 60, False, True),
        (5, 1 << 60, True, True),
    ],
    ids=["within the horizon", "beyond it", "another journal is", "the ACK is yet to be read"],
)
def test_a_group_is_given_up_when_its_own_journal_is_beyond_the_horizon(
    place: int, clock: int, there: bool, waits: bool
) -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(committed(place, clock))
    assert bool(groups.settle(read(there=there))) is waits


@pytest.mark.parametrize(
    ("place", "clock", "waits"), [(5, 1500, True), (5, 1501, False), (6, 1501, False)]
)
def test_a_group_of_several_producers_is_as_late_as_its_last_ack(
    place: int, clock: int, waits: bool
) -> None:
    """By whichever of its journals is furthest."""
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 2, 500, 490)], [(2, 2, 500)]))
    groups.fold(committed(place, clock))
    assert bool(groups.settle(read(there=False))) is waits


def test_what_was_shown_in_part_is_complete() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.complete({(5, 1): 19, (5, 2): 20, (6, 1): 20})
    assert groups.settle(read()) == {(0, 1): 20}
    groups.complete({(5, 1): 20})
    assert groups.settle(read()) == {}


def test_reports_of_one_group_by_several_slices_are_one() -> None:
    groups = Groups(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(group((0, 1, 20), [(6, 1, 20, 18)], [(1, 1, 20)]))
    floors = groups.settle(read(1))
    holds = groups.hold(0, 1, 5, floors), groups.hold(0, 1, 6, floors)
    assert holds == (Hold(14, 50), Hold(17, 60))
    assert groups.settle(read(1, 2)) == {}
