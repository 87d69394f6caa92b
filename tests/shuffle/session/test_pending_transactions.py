"""Which transactions are complete, and what holds back the others."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from headrace.ids import JournalId
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.session.pending_transactions import (
    AckLookup,
    AckStatus,
    CommitCap,
    PendingTransactions,
)

HORIZON = 1000
TransactionId = tuple[int, int, int]


def transaction(
    id: TransactionId,
    commits: list[tuple[int, int, int, int]],
    parts: list[tuple[int, int, int]] | None = None,
    offset: int = 0,
) -> ProgressReport:
    """Return a report of one transaction.

    `commits` are (place, producer, clock, first clock) of ACKs that were read, `parts` are
    (journal, producer, clock) of ACKs that a hint names at `offset`. In every place the
    transaction begins at ten times the place's number.
    """
    rows = [(*id, place, p, clock, first, 10 * place) for place, p, clock, first in commits]
    open_parts = [(*id, journal, 0, p, clock, offset) for journal, p, clock in parts or []]
    return ProgressReport(commits=np.array(rows, COMMIT_ROW), parts=np.array(open_parts, PART_ROW))


def read(*journals: int, there: bool = True) -> AckLookup:
    """Return a lookup: these journals are read to their ends. Others have their ACKs if `there`."""

    def find(journal: JournalId, binding: int, offset: int) -> AckStatus:
        if journal in journals:
            return AckStatus.READ
        return AckStatus.COMING if there else AckStatus.NOWHERE

    return find


def settle(pending: PendingTransactions, find: AckLookup) -> dict[tuple[int, int], int]:
    """Settle all journals; return the oldest pending clocks by cohort and producer."""
    for journal in range(10):
        pending.moved(JournalId(journal), 0)
    pending.settle(find)
    return pending.oldest_clocks()


def test_a_transaction_with_an_unread_ack_holds_back_its_producer() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    floors = settle(pending, read())
    assert floors == {(0, 1): 20}
    assert pending.cap(0, 1, 5) == CommitCap(14, 50), "just below its first document there"
    assert pending.cap(0, 1, 6) == CommitCap(19, 0), "elsewhere, just below its clock"
    assert pending.cap(0, 2, 5) is None
    assert pending.cap(1, 1, 5) is None, "another cohort"
    assert list(pending.waiting(read())) == [(1, 2)]
    assert settle(pending, read(2)) == {}
    assert list(pending.waiting(read(2))) == []


def test_all_acks_must_be_read() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20), (3, 1, 20)]))
    assert settle(pending, read(2)) == {(0, 1): 20}
    assert settle(pending, read(2, 3)) == {}


# proves G5
def test_an_ack_in_a_journal_that_lags_is_waited_for_until_that_is_deleted() -> None:
    """No Slice reads more of that journal, which would make the Session look at it again."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.settle(read())
    assert pending.oldest_clocks() == {(0, 1): 20}
    pending.forget(lambda at: at == 6, {(0, 1)})
    pending.settle(read(2))
    assert pending.oldest_clocks() == {}


# proves G9
def test_the_oldest_pending_transaction_of_a_producer_counts() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 30), [(5, 1, 30, 25)], [(3, 1, 30)]))
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    floors = settle(pending, read(3))
    assert floors == {(0, 1): 20}
    assert pending.cap(0, 1, 5) == CommitCap(14, 50)
    floors = settle(pending, read(2))
    assert settle(pending, read(2, 3)) == {}


# proves G9
def test_an_older_transaction_of_any_of_its_producers_holds_back_a_complete_one() -> None:
    """Producer 1 waits. Then it shares a transaction with 2, and later 2 shares one with 3."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(9, 1, 20)]))
    pending.fold(transaction((0, 1, 30), [(5, 1, 30, 25), (6, 2, 31, 26)]))
    pending.fold(transaction((0, 2, 40), [(6, 2, 40, 35), (7, 3, 41, 36)]))
    floors = settle(pending, read())
    assert floors == {(0, 1): 20, (0, 2): 31, (0, 3): 41}
    assert pending.cap(0, 3, 7) == CommitCap(35, 70)
    assert settle(pending, read(9)) == {}


# proves G11
def test_a_later_transaction_does_not_hold_back_an_earlier_one() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15), (6, 2, 21, 16)]))
    pending.fold(transaction((0, 1, 30), [(5, 1, 30, 25)], [(9, 1, 30)]))
    assert settle(pending, read()) == {(0, 1): 30}


def test_two_transactions_that_wait_for_each_other_are_complete_together() -> None:
    """Producers 1 and 2 commit two transactions whose clocks cross."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15), (6, 2, 40, 35)]))
    pending.fold(transaction((0, 1, 30), [(5, 1, 30, 25), (6, 2, 30, 25)]))
    assert settle(pending, read()) == {}


def test_cohorts_do_not_wait_for_each_other() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.fold(transaction((1, 1, 20), [(6, 1, 20, 15)], [(3, 1, 20)]))
    assert settle(pending, read(3)) == {(0, 1): 20}
    assert settle(pending, read(2)) == {}


def committed(place: int, clock: int, producer: int = 7) -> ProgressReport:
    """Return a report of one commit by one producer."""
    return ProgressReport(producers=np.array([(place, producer, clock, -1, -1, 0)], PROGRESS_ROW))


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
def test_a_transaction_is_given_up_when_its_own_journal_is_beyond_the_horizon(
    place: int, clock: int, there: bool, waits: bool
) -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.fold(committed(place, clock))
    assert bool(settle(pending, read(there=there))) is waits


@pytest.mark.parametrize(
    ("place", "clock", "waits"), [(5, 1500, True), (5, 1501, False), (6, 1501, False)]
)
def test_a_transaction_of_several_producers_is_as_late_as_its_last_ack(
    place: int, clock: int, waits: bool
) -> None:
    """The journal that is furthest decides."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15), (6, 2, 500, 490)], [(2, 2, 500)]))
    pending.fold(committed(place, clock))
    assert bool(settle(pending, read(there=False))) is waits


# proves G11
def test_a_lost_ack_holds_up_no_other_lost_ack_of_the_same_journal() -> None:
    """Producer 1 and its journal are idle, so no clock shows that its ACK is late."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)], offset=100))
    pending.fold(transaction((0, 2, 30), [(6, 2, 30, 25)], [(2, 2, 30)], offset=200))
    pending.fold(committed(6, 1030))
    assert settle(pending, read(there=False)) == {(0, 1): 20, (0, 2): 30}
    pending.fold(committed(6, 1031))
    assert settle(pending, read(there=False)) == {(0, 1): 20}
    pending.fold(committed(5, 1021))
    assert settle(pending, read(there=False)) == {}


def test_an_ack_that_two_transactions_await_is_given_up_when_both_are_late() -> None:
    """Their hints contradict each other, and nobody knows which of them has the ACK."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.fold(transaction((0, 2, 500), [(6, 2, 500, 490)], [(2, 2, 500)]))
    pending.fold(committed(5, 1021))
    assert settle(pending, read(there=False)) == {(0, 1): 20, (0, 2): 500}
    pending.fold(committed(6, 1501))
    assert settle(pending, read(there=False)) == {}


def test_what_the_producer_committed_elsewhere_before_the_hint_was_read_counts() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(committed(8, 1021, producer=1))
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.fold(transaction((0, 2, 20), [(6, 2, 20, 15)], [(2, 2, 20)], offset=1))
    assert settle(pending, read(there=False)) == {(0, 2): 20}


def test_what_was_shown_in_part_is_complete() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.forget_shown({(5, 1): 19, (5, 2): 20, (6, 1): 20})
    assert settle(pending, read()) == {(0, 1): 20}
    pending.forget_shown({(5, 1): 20})
    assert settle(pending, read()) == {}


# proves G9
def test_what_a_replay_did_not_show_of_a_transaction_is_shown_as_a_whole() -> None:
    """The rest is under bindings that the task did not have when it made the checkpoint."""
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15), (6, 1, 20, 18)], [(2, 1, 20)]))
    pending.forget_shown({(5, 1): 20})
    assert settle(pending, read()) == {(0, 1): 20}
    assert pending.cap(0, 1, 6) == CommitCap(17, 60)
    assert settle(pending, read(2)) == {}


def test_reports_of_several_slices_about_one_transaction_are_joined() -> None:
    pending = PendingTransactions(HORIZON)
    pending.fold(transaction((0, 1, 20), [(5, 1, 20, 15)], [(2, 1, 20)]))
    pending.fold(transaction((0, 1, 20), [(6, 1, 20, 18)], [(1, 1, 20)]))
    settle(pending, read(1))
    holds = pending.cap(0, 1, 5), pending.cap(0, 1, 6)
    assert holds == (CommitCap(14, 50), CommitCap(17, 60))
    assert settle(pending, read(1, 2)) == {}


# proves G9, G11
@pytest.mark.parametrize("seed", range(60))
def test_exactly_what_waits_for_nothing_outside_is_released(seed: int) -> None:
    """Compare random transactions, whose clocks may cross, with a plain search."""
    rng = Random(seed)
    pending = PendingTransactions(HORIZON)
    unreleased: dict[int, dict[int, int]] = {}
    """By the journal that a transaction waits for, the clocks of its producers."""
    clocks = [100] * rng.choice([1, 2, 4])
    read_journals: set[int] = set()

    def find(journal: JournalId, binding: int, offset: int) -> AckStatus:
        return AckStatus.READ if journal in read_journals else AckStatus.COMING

    for journal in range(1, 60):
        taking_part = rng.sample(range(len(clocks)), rng.randint(1, min(2, len(clocks))))
        for producer in taking_part:
            clocks[producer] += rng.randrange(1, 4)
        clock_of = {1 + p: (clocks[p] + rng.choice([0, 0, 28])) * 64 + journal for p in taking_part}
        unreleased[journal] = clock_of
        id = 0, min(clock_of), clock_of[min(clock_of)]
        commits = [(producer, producer, clock, clock) for producer, clock in clock_of.items()]
        parts = [(journal, min(clock_of), clock_of[min(clock_of)])]
        pending.fold(transaction(id, commits, parts))
        for awaited in [*unreleased]:
            if rng.random() < 0.2 and awaited not in read_journals:
                read_journals.add(awaited)
                pending.moved(JournalId(awaited), 0)
        pending.settle(find)
        unreleased = still_pending(unreleased, read_journals)
        floors: dict[tuple[int, int], int] = {}
        for clock_of in unreleased.values():
            for producer, clock in clock_of.items():
                floors[0, producer] = min(clock, floors.get((0, producer), clock))
        assert pending.oldest_clocks() == floors
        assert len(pending) == len(unreleased)


def still_pending(
    unreleased: dict[int, dict[int, int]], read: set[int]
) -> dict[int, dict[int, int]]:
    """Return the transactions that wait for a journal, or for one that does."""
    pending = {journal for journal in unreleased if journal not in read}
    while True:
        held = {
            journal
            for journal, clock_of in unreleased.items()
            if journal not in pending
            and any(
                unreleased[other].get(producer, clock) < clock
                for other in pending
                for producer, clock in clock_of.items()
            )
        }
        if not held:
            return {
                journal: clock_of for journal, clock_of in unreleased.items() if journal in pending
            }
        pending |= held


# proves G12
def test_settling_costs_what_changed_and_not_what_is_pending() -> None:
    pending = PendingTransactions(HORIZON)
    asked: list[int] = []
    read_through = [0]

    def find(journal: JournalId, binding: int, offset: int) -> AckStatus:
        asked.append(offset)
        return AckStatus.READ if journal == 2 and offset < read_through[0] else AckStatus.COMING

    for number in range(1, 2001):
        clock, id = 10 * number, (0, 1, 10 * number)
        for journal in (2, 3) if number % 2 else (2,):
            pending.fold(
                ProgressReport(
                    commits=np.array([(*id, 5, 1, clock, clock - 5, number)], COMMIT_ROW),
                    parts=np.array([(*id, journal, 0, 1, clock, number)], PART_ROW),
                )
            )
    pending.settle(find)
    asked.clear()
    for read_through[0] in range(2, 102):
        pending.moved(JournalId(2), 0)
        pending.moved(JournalId(9), 0)
        pending.settle(find)
    assert len(asked) <= 2 * 100
    assert pending.oldest_clocks() == {(0, 1): 10}
