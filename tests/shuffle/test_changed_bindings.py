"""A task whose bindings are others than those of its last checkpoint."""

from __future__ import annotations

from headrace.shuffle.binding import Source, Sources
from tests.shuffle.builders import source
from tests.shuffle.memory_session import MemorySession

COLLECTIONS = "abcdef"


def sources(left_out: str = "", alone: str = "") -> list[Source]:
    """One of each collection; what is `alone` is in a cohort of its own."""
    return [
        source(tag, name, cohort=int(name in alone))
        for tag, name in enumerate(COLLECTIONS)
        if name not in left_out
    ]


# proves G5, G9
def test_a_binding_that_is_added_shows_its_part_of_what_was_committed() -> None:
    """Its transaction is complete though the other parts are read again as duplicates."""
    session = MemorySession(COLLECTIONS, sources(left_out="b"))
    session.settle()
    for journal in (1, 3, 4, 5, 6):
        # Stays open, so that a restart reads again from here.
        session.write(journal, 5 + journal, producer=2)
    for journal in range(1, 7):
        session.write(journal, 30 + journal)
    session.commit(60, *range(1, 7))
    assert session.next() == [(tag, 31 + tag) for tag in (0, 2, 3, 4, 5)]
    session.sources = Sources(sources())
    session.open()
    assert session.next() == [(1, 32)]
    assert session.waits_for() == []


# proves G5, G9
def test_a_transaction_that_is_read_again_in_another_cohort_is_shown() -> None:
    session = MemorySession(COLLECTIONS, sources(alone="b"))
    session.settle()
    for journal in (1, 3, 4, 5, 6):
        session.write(journal, 5, producer=2)
        session.write(journal, 10)
    session.write(2, 11)
    hints = session.hints(20, 1, 2, 3, 4, 5, 6)
    for journal in (1, 3, 4, 5, 6):
        session.ack(journal, 20, hints=hints)
    assert session.next() == [(tag, 10) for tag in (0, 2, 3, 4, 5)]
    session.sources = Sources(sources())
    session.open()
    session.ack(2, 20, hints=hints)
    assert session.next() == [(1, 11)]
    assert session.waits_for() == []
