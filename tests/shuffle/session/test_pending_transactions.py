"""Which transactions are complete, and what holds the others."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from headrace.ids import JournalId
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, Delta
from headrace.shuffle.session.pending_transactions import (
    AckStatus,
    CommitCap,
    Find,
    PendingTransactions,
)

HORIZON = 1000
GroupOf = tuple[int, int, int]


def group(
    id: GroupOf,
    commits: list[tuple[int, int, int, int]],
    parts: list[tuple[int, int, int]] | None = None,
    offset: int = 0,
) -> Delta:
    """`commits` are (place, producer, clock, first), `parts` (journal, producer, clock): ACKs at
    `offset`.

    In every place the transaction begins at ten times the number of that.
    """
    rows = [(*id, place, p, clock, first, 10 * place) for place, p, clock, first in commits]
    open_parts = [(*id, journal, 0, p, clock, offset) for journal, p, clock in parts or []]
    return Delta(commits=np.array(rows, COMMIT_ROW), parts=np.array(open_parts, PART_ROW))


def read(*journals: int, there: bool = True) -> Find:
    """These are read to their ends; the ACKs in others stand there, or nowhere."""

    def find(journal: JournalId, binding: int, offset: int) -> AckStatus:
        if journal in journals:
            return AckStatus.READ
        return AckStatus.COMING if there else AckStatus.NOWHERE

    return find


def settle(groups: PendingTransactions, find: Find) -> dict[tuple[int, int], int]:
    """All journals are looked at; returns the oldest pending clocks by cohort and producer."""
    for journal in range(10):
        groups.moved(JournalId(journal), 0)
    groups.settle(find)
    return groups.floors()


def test_a_group_with_a_part_that_is_not_read_holds_its_producer() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    floors = settle(groups, read())
    assert floors == {(0, 1): 20}
    assert groups.cap(0, 1, 5) == CommitCap(14, 50), "just below its first document there"
    assert groups.cap(0, 1, 6) == CommitCap(19, 0), "elsewhere, just below its clock"
    assert groups.cap(0, 2, 5) is None
    assert groups.cap(1, 1, 5) is None, "another cohort"
    assert list(groups.waiting(read())) == [(1, 2)]
    assert settle(groups, read(2)) == {}
    assert list(groups.waiting(read(2))) == []


def test_all_parts_must_be_read() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20), (3, 1, 20)]))
    assert settle(groups, read(2)) == {(0, 1): 20}
    assert settle(groups, read(2, 3)) == {}


# proves G5
def test_an_ack_in_a_journal_that_lags_is_waited_for_until_that_is_deleted() -> None:
    """Nothing more is read of that journal, which would have it looked at again."""
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.settle(read())
    assert groups.floors() == {(0, 1): 20}
    groups.forget(lambda at: at == 6, {(0, 1)})
    groups.settle(read(2))
    assert groups.floors() == {}


# proves G9
def test_the_oldest_pending_group_of_a_producer_counts() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25)], [(3, 1, 30)]))
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    floors = settle(groups, read(3))
    assert floors == {(0, 1): 20}
    assert groups.cap(0, 1, 5) == CommitCap(14, 50)
    floors = settle(groups, read(2))
    assert settle(groups, read(2, 3)) == {}


# proves G9
def test_what_is_complete_is_held_by_an_older_one_of_any_of_its_producers() -> None:
    """1 waits; 2 shares a transaction with 1 after that; 3 one with 2 after that."""
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(9, 1, 20)]))
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25), (6, 2, 31, 26)]))
    groups.fold(group((0, 2, 40), [(6, 2, 40, 35), (7, 3, 41, 36)]))
    floors = settle(groups, read())
    assert floors == {(0, 1): 20, (0, 2): 31, (0, 3): 41}
    assert groups.cap(0, 3, 7) == CommitCap(35, 70)
    assert settle(groups, read(9)) == {}


# proves G11
def test_an_earlier_transaction_is_not_held_by_a_later_one() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 2, 21, 16)]))
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25)], [(9, 1, 30)]))
    assert settle(groups, read()) == {(0, 1): 30}


def test_two_that_wait_for_each_other_are_complete_together() -> None:
    """Producers 1 and 2 commit two transactions, whose clocks cross."""
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 2, 40, 35)]))
    groups.fold(group((0, 1, 30), [(5, 1, 30, 25), (6, 2, 30, 25)]))
    assert settle(groups, read()) == {}


def test_cohorts_are_apart() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(group((1, 1, 20), [(6, 1, 20, 15)], [(3, 1, 20)]))
    assert settle(groups, read(3)) == {(0, 1): 20}
    assert settle(groups, read(2)) == {}


def committed(place: int, clock: int, producer: int = 7) -> Delta:
    """Something of a producer, alone."""
    return Delta(producers=np.array([(place, producer, clock, -1, -1, 0)], PROGRESS_ROW))


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
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(committed(place, clock))
    assert bool(settle(groups, read(there=there))) is waits


@pytest.mark.parametrize(
    ("place", "clock", "waits"), [(5, 1500, True), (5, 1501, False), (6, 1501, False)]
)
def test_a_group_of_several_producers_is_as_late_as_its_last_ack(
    place: int, clock: int, waits: bool
) -> None:
    """By whichever of its journals is furthest."""
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 2, 500, 490)], [(2, 2, 500)]))
    groups.fold(committed(place, clock))
    assert bool(settle(groups, read(there=False))) is waits


# proves G11
def test_a_lost_ack_holds_up_no_other_that_is_lost_in_the_same_journal() -> None:
    """Producer 1 and its journal are idle, so nothing tells that its ACK is late."""
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)], offset=100))
    groups.fold(group((0, 2, 30), [(6, 2, 30, 25)], [(2, 2, 30)], offset=200))
    groups.fold(committed(6, 1030))
    assert settle(groups, read(there=False)) == {(0, 1): 20, (0, 2): 30}
    groups.fold(committed(6, 1031))
    assert settle(groups, read(there=False)) == {(0, 1): 20}
    groups.fold(committed(5, 1021))
    assert settle(groups, read(there=False)) == {}


def test_what_the_producer_committed_elsewhere_before_the_hint_was_read_counts() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(committed(8, 1021, producer=1))
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(group((0, 2, 20), [(6, 2, 20, 15)], [(2, 2, 20)], offset=1))
    assert settle(groups, read(there=False)) == {(0, 2): 20}


def test_what_was_shown_in_part_is_complete() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.complete({(5, 1): 19, (5, 2): 20, (6, 1): 20})
    assert settle(groups, read()) == {(0, 1): 20}
    groups.complete({(5, 1): 20})
    assert settle(groups, read()) == {}


# proves G9
def test_what_a_replay_did_not_show_of_a_transaction_is_shown_as_a_whole() -> None:
    """It stands under bindings that the task did not have when the checkpoint was made."""
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15), (6, 1, 20, 18)], [(2, 1, 20)]))
    groups.complete({(5, 1): 20})
    assert settle(groups, read()) == {(0, 1): 20}
    assert groups.cap(0, 1, 6) == CommitCap(17, 60)
    assert settle(groups, read(2)) == {}


def test_reports_of_one_group_by_several_slices_are_one() -> None:
    groups = PendingTransactions(HORIZON)
    groups.fold(group((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    groups.fold(group((0, 1, 20), [(6, 1, 20, 18)], [(1, 1, 20)]))
    settle(groups, read(1))
    holds = groups.cap(0, 1, 5), groups.cap(0, 1, 6)
    assert holds == (CommitCap(14, 50), CommitCap(17, 60))
    assert settle(groups, read(1, 2)) == {}


# proves G9, G11
@pytest.mark.parametrize("seed", range(60))
def test_exactly_what_waits_for_nothing_outside_is_released(seed: int) -> None:
    """Random transactions of several producers, whose clocks may cross; a plain search judges."""
    rng = Random(seed)
    groups = PendingTransactions(HORIZON)
    made: dict[int, dict[int, int]] = {}
    """By the journal that a transaction waits for, the clocks of its producers."""
    clocks = [100] * rng.choice([1, 2, 4])
    read_journals: set[int] = set()

    def find(journal: JournalId, binding: int, offset: int) -> AckStatus:
        return AckStatus.READ if journal in read_journals else AckStatus.COMING

    for journal in range(1, 60):
        taking_part = rng.sample(range(len(clocks)), rng.randint(1, min(2, len(clocks))))
        for producer in taking_part:
            clocks[producer] += rng.randrange(1, 4)
        of = {1 + p: (clocks[p] + rng.choice([0, 0, 28])) * 64 + journal for p in taking_part}
        made[journal] = of
        id = 0, min(of), of[min(of)]
        commits = [(producer, producer, clock, clock) for producer, clock in of.items()]
        parts = [(journal, min(of), of[min(of)])]
        groups.fold(group(id, commits, parts))
        for awaited in [*made]:
            if rng.random() < 0.2 and awaited not in read_journals:
                read_journals.add(awaited)
                groups.moved(JournalId(awaited), 0)
        groups.settle(find)
        made = still_pending(made, read_journals)
        floors: dict[tuple[int, int], int] = {}
        for of in made.values():
            for producer, clock in of.items():
                floors[0, producer] = min(clock, floors.get((0, producer), clock))
        assert groups.floors() == floors
        assert len(groups) == len(made)


def still_pending(made: dict[int, dict[int, int]], read: set[int]) -> dict[int, dict[int, int]]:
    pending = {journal for journal in made if journal not in read}
    while True:
        held = {
            journal
            for journal, of in made.items()
            if journal not in pending
            and any(
                made[other].get(producer, clock) < clock
                for other in pending
                for producer, clock in of.items()
            )
        }
        if not held:
            return {journal: of for journal, of in made.items() if journal in pending}
        pending |= held


# proves G12
def test_settling_costs_what_changed_and_not_what_is_pending() -> None:
    groups = PendingTransactions(HORIZON)
    looked_at: list[int] = []
    read_through = [0]

    def find(journal: JournalId, binding: int, offset: int) -> AckStatus:
        looked_at.append(offset)
        return AckStatus.READ if journal == 2 and offset < read_through[0] else AckStatus.COMING

    for number in range(1, 2001):
        clock, at = 10 * number, (0, 1, 10 * number)
        for journal in (2, 3) if number % 2 else (2,):
            groups.fold(
                Delta(
                    commits=np.array([(*at, 5, 1, clock, clock - 5, number)], COMMIT_ROW),
                    parts=np.array([(*at, journal, 0, 1, clock, number)], PART_ROW),
                )
            )
    groups.settle(find)
    looked_at.clear()
    for read_through[0] in range(2, 102):
        groups.moved(JournalId(2), 0)
        groups.moved(JournalId(9), 0)
        groups.settle(find)
    assert len(looked_at) <= 2 * 100
    assert groups.floors() == {(0, 1): 10}
