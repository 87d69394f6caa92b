"""A task whose bindings are others than those of its last checkpoint."""

from __future__ import annotations

from headrace.shuffle.binding import Source, Sources
from tests.shuffle.made import source
from tests.shuffle.story import Story

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
    story = Story(COLLECTIONS, sources(left_out="b"))
    story.settle()
    for journal in (1, 3, 4, 5, 6):
        # Stays open, so that a restart reads again from here.
        story.write(journal, 5 + journal, producer=2)
    for journal in range(1, 7):
        story.write(journal, 30 + journal)
    story.commit(60, *range(1, 7))
    assert story.next() == [(tag, 31 + tag) for tag in (0, 2, 3, 4, 5)]
    story.sources = Sources(sources())
    story.open()
    assert story.next() == [(1, 32)]
    assert story.waits_for() == []


# proves G5, G9
def test_a_transaction_that_is_read_again_in_another_cohort_is_shown() -> None:
    story = Story(COLLECTIONS, sources(alone="b"))
    story.settle()
    for journal in (1, 3, 4, 5, 6):
        story.write(journal, 5, producer=2)
        story.write(journal, 10)
    story.write(2, 11)
    hints = story.hints(20, 1, 2, 3, 4, 5, 6)
    for journal in (1, 3, 4, 5, 6):
        story.ack(journal, 20, hints=hints)
    assert story.next() == [(tag, 10) for tag in (0, 2, 3, 4, 5)]
    story.sources = Sources(sources())
    story.open()
    story.ack(2, 20, hints=hints)
    assert story.next() == [(1, 11)]
    assert story.waits_for() == []
