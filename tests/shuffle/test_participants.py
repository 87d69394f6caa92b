"""Transactions that several producers wrote."""

from __future__ import annotations

from tests.shuffle.made import Hint, source
from tests.shuffle.story import Story

A, B = 1, 2
"""Journals."""


def ab() -> Story:
    return Story("ab", [source(number, name) for number, name in enumerate("ab")])


# proves G9
def test_a_transaction_waits_as_a_whole_for_an_older_one_of_one_participant() -> None:
    """Both of its ACKs are in one journal, so the Slice that reads them misses none."""
    story = ab()
    story.write(A, 10)
    story.write(B, 11)
    older = story.hints(20, A, B)
    story.ack(A, 20, hints=older)
    story.write(A, 30, producer=1)
    story.write(A, 31, producer=2)
    head = story.journal(A).head
    younger: list[Hint] = [(A, head, 1, 40), (A, head + 5, 2, 41)]
    story.ack(A, 40, producer=1, hints=younger)
    story.ack(A, 41, producer=2, hints=younger)
    assert story.next() == []
    story.ack(B, 20, hints=older)
    assert story.next() == [(0, 10), (0, 30), (0, 31), (1, 11)]


# proves G6, G9
def test_a_participant_that_lost_is_neither_shown_nor_waited_for() -> None:
    """Its ACK is in the table of the transaction, with a clock that rolls back."""
    story = ab()
    story.write(A, 10, producer=1)
    story.write(B, 11, producer=2)
    table: list[Hint] = [(A, story.journal(A).head, 1, 20), (B, story.journal(B).head, 2, 0)]
    story.ack(A, 20, producer=1, hints=table)
    assert story.next() == [(0, 10)]
    story.ack(B, 0, producer=2, hints=table)
    story.outside(B, 30, producer=2)
    assert story.next() == [(1, 30)]
