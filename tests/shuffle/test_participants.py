"""Transactions that several producers wrote."""

from __future__ import annotations

from tests.shuffle.builders import Hint, source
from tests.shuffle.memory_session import MemorySession

A, B = 1, 2
"""Journals."""


def ab() -> MemorySession:
    return MemorySession("ab", [source(number, name) for number, name in enumerate("ab")])


# proves G9
def test_a_transaction_waits_as_a_whole_for_an_older_one_of_one_participant() -> None:
    """Both of its ACKs are in one journal, so the Slice that reads them misses none."""
    session = ab()
    session.write(A, 10)
    session.write(B, 11)
    older = session.hints(20, A, B)
    session.ack(A, 20, hints=older)
    session.write(A, 30, producer=1)
    session.write(A, 31, producer=2)
    head = session.journal(A).head
    younger: list[Hint] = [(A, head, 1, 40), (A, head + 5, 2, 41)]
    session.ack(A, 40, producer=1, hints=younger)
    session.ack(A, 41, producer=2, hints=younger)
    assert session.next() == []
    session.ack(B, 20, hints=older)
    assert session.next() == [(0, 10), (0, 30), (0, 31), (1, 11)]


# proves G6, G9
def test_a_participant_that_lost_is_neither_shown_nor_waited_for() -> None:
    """Its ACK is in the table of the transaction, with a clock that rolls back."""
    session = ab()
    session.write(A, 10, producer=1)
    session.write(B, 11, producer=2)
    table: list[Hint] = [(A, session.journal(A).head, 1, 20), (B, session.journal(B).head, 2, 0)]
    session.ack(A, 20, producer=1, hints=table)
    assert session.next() == [(0, 10)]
    session.ack(B, 0, producer=2, hints=table)
    session.outside(B, 30, producer=2)
    assert session.next() == [(1, 30)]
