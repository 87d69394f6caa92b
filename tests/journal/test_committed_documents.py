"""Selects committed frames: scenarios, then random journals against the oracle."""

from __future__ import annotations

from random import Random

import pytest

from headrace.errors import ProtocolError
from headrace.journal.committed_documents import committed
from headrace.journal.contract import Frame
from headrace.testing.journal_oracle import DocumentId, JournalOracle, documents
from tests.journal.frame_script import frames, random_frames


def shown(given: list[Frame]) -> list[DocumentId]:
    return [document for frame in committed(given) for document in documents(frame)]


def clocks(script: str) -> list[int]:
    return [document.clock for document in shown(frames(script))]


@pytest.mark.parametrize(
    ("script", "visible"),
    [
        ("O1 O2 O3", [1, 2, 3]),
        ("C1 C2 A3", [1, 2]),
        ("C1+3 C4+2 A9", [1, 2, 3, 4, 5]),
        ("C1 C2", []),
        ("A5", []),
        ("C1 A2 A2 A1", [1]),
        ("C1 A1", [1]),
        # A producer that was rolled back continues above everything it wrote.
        ("O5 C10 C11 A5 C20 A20", [5, 20]),
        ("C5 A5 C10 C11 A5 C20 A20", [5, 20]),
        ("C10 C11 A0 C20 A20", [20]),
        ("O8 C10 A3 O11", [8, 11]),
        # Repeated and overlapping frames show each document once.
        ("O1+3 O2+3 O4", [1, 2, 3, 4]),
        ("C1+3 C1+3 C2+3 A9 C1+3 A9", [1, 2, 3, 4]),
        ("C1+3 A0 C2+4 A9", [4, 5]),
    ],
)
def test_scenarios_of_one_producer(script: str, visible: list[int]) -> None:
    assert clocks(script) == visible


def test_an_open_span_delays_no_other_producer() -> None:
    # proves G11
    given = frames("p1:C1 p2:O1 p2:C2 p2:A3 p1:A9 p2:C5")
    assert [(d.producer, d.clock) for d in shown(given)] == [(2, 1), (2, 2), (1, 1)]


def test_documents_stand_where_their_transaction_committed() -> None:
    given = frames("p1:C1 p2:C1 p2:A2 p1:C2 p1:A3")
    assert [(d.producer, d.clock) for d in shown(given)] == [(2, 1), (1, 1), (1, 2)]


def test_a_span_that_began_before_the_first_frame_is_seen_from_there_on() -> None:
    given = frames("C1 C2 C3 A4")
    assert [d.clock for d in shown(given[1:])] == [2, 3]
    assert shown(given[3:]) == []


def test_frames_out_of_order_are_refused_at_their_place() -> None:
    given = committed(frames("O1 C2 O3"))
    assert next(given).clock == 1
    with pytest.raises(ProtocolError, match="at offset 20"):
        next(given)


@pytest.mark.long
@pytest.mark.parametrize("producers", [1, 3])
def test_random_journals_show_what_the_oracle_shows(producers: int) -> None:
    # proves G6
    rng = Random(producers)
    complete = 0
    for _ in range(4_000):
        given = random_frames(rng, producers, 20, 12)
        try:
            expected = JournalOracle().take_all(given)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                shown(given)
            continue
        complete += 1
        assert shown(given) == expected
    assert complete > 300
