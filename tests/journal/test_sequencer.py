"""The sequencer: every row of its table, then random journals against an oracle."""

from __future__ import annotations

from random import Random

import pytest

from headrace.clock import Clock
from headrace.errors import ProtocolError
from headrace.ids import Offset, Producer
from headrace.journal.sequencer import Flags, FrameOutcome, Sequence, Step, sequence
from headrace.testing.journal_oracle import JournalOracle
from tests.journal.frame_script import random_frames

HERE = 70
OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE, Flags.CONTINUE, Flags.ACK


def closed(last_commit: int, last_continue: int = 0) -> Sequence:
    return Sequence(Clock(last_commit), Clock(last_continue))


def opened(last_commit: int, last_continue: int, begin: int = 30, first: int = 7) -> Sequence:
    return Sequence(Clock(last_commit), Clock(last_continue), Offset(begin), Clock(first))


def unknown(before: Sequence) -> Sequence:
    """Return the state for a reader that began in the middle of the journal."""
    return before._replace(is_known=False)


def step(before: Sequence, flags: Flags, clock: int, count: int = 1) -> Step:
    return sequence(before, flags, Clock(clock), count, Offset(HERE))


# flags, clock, state before -> outcome, state after: in the order of the module's table.
TABLE = [
    (OUTSIDE, 4, closed(5), FrameOutcome.DUPLICATE, closed(5)),
    (OUTSIDE, 5, closed(5), FrameOutcome.DUPLICATE, closed(5)),
    (OUTSIDE, 6, closed(5), FrameOutcome.COMMIT, closed(6)),
    (OUTSIDE, 6, closed(5, 9), FrameOutcome.COMMIT, closed(6, 9)),
    (CONTINUE, 5, closed(5), FrameOutcome.DUPLICATE, closed(5)),
    (CONTINUE, 9, closed(5, 9), FrameOutcome.DUPLICATE, closed(5, 9)),
    (CONTINUE, 5, opened(5, 9), FrameOutcome.DUPLICATE, opened(5, 9)),
    (CONTINUE, 9, opened(5, 9), FrameOutcome.DUPLICATE, opened(5, 9)),
    (CONTINUE, 10, closed(5, 9), FrameOutcome.BEGIN, opened(5, 10, HERE, first=10)),
    (CONTINUE, 10, opened(5, 9), FrameOutcome.EXTEND, opened(5, 10)),
    (ACK, 6, closed(5), FrameOutcome.EMPTY, closed(6)),
    (ACK, 6, closed(5, 9), FrameOutcome.EMPTY, closed(6, 9)),
    (ACK, 9, opened(5, 9), FrameOutcome.COMMIT, closed(9, 9)),
    (ACK, 10, opened(5, 9), FrameOutcome.COMMIT, closed(10, 9)),
    (ACK, 5, closed(5), FrameOutcome.DUPLICATE, closed(5)),
    (ACK, 4, closed(5, 9), FrameOutcome.DUPLICATE, closed(5, 9)),
    (ACK, 5, opened(5, 9), FrameOutcome.ROLLBACK, closed(5, 9)),
    (ACK, 4, opened(5, 9), FrameOutcome.ROLLBACK, closed(5, 9)),
    (ACK, 0, opened(0, 9), FrameOutcome.ROLLBACK, closed(0, 9)),
    (CONTINUE, 10, unknown(closed(0)), FrameOutcome.BEGIN, unknown(opened(0, 10, HERE, first=10))),
    (ACK, 6, unknown(opened(0, 9)), FrameOutcome.ROLLBACK, unknown(closed(0, 9))),
    (ACK, 9, unknown(opened(0, 9)), FrameOutcome.COMMIT, closed(9, 9)),
    (ACK, 6, unknown(closed(0)), FrameOutcome.EMPTY, unknown(closed(6))),
    (OUTSIDE, 6, unknown(closed(0)), FrameOutcome.COMMIT, closed(6)),
]


@pytest.mark.parametrize(("flags", "clock", "before", "outcome", "after"), TABLE)
def test_each_row_of_the_table(
    flags: Flags, clock: int, before: Sequence, outcome: FrameOutcome, after: Sequence
) -> None:
    assert step(before, flags, clock) == Step(outcome, after)


@pytest.mark.parametrize("clock", [3, 5, 6, 9, 12])
def test_outside_in_an_open_span_is_refused_whatever_its_clock(clock: int) -> None:
    with pytest.raises(ProtocolError, match=f"clock {clock} at offset {HERE} .* opened at 30"):
        step(opened(5, 9), OUTSIDE, clock)


@pytest.mark.parametrize("clock", [6, 8])
def test_an_ack_below_a_pending_document_is_refused(clock: int) -> None:
    with pytest.raises(ProtocolError, match=f"ACK of clock {clock} .* clock 9"):
        step(opened(5, 9), ACK, clock)


@pytest.mark.parametrize("clock", [7, 8])
def test_an_ack_within_the_pending_documents_is_refused_whatever_precedes_them(clock: int) -> None:
    with pytest.raises(ProtocolError, match=f"ACK of clock {clock} .* clock 9"):
        step(unknown(opened(0, 9)), ACK, clock)


@pytest.mark.parametrize(
    ("before", "flags", "clock", "skip", "last"),
    [
        (closed(5), OUTSIDE, 4, 2, 7),
        (closed(5), OUTSIDE, 5, 1, 8),
        (closed(5), OUTSIDE, 6, 0, 9),
        (closed(5, 7), CONTINUE, 5, 3, 8),
        (closed(7, 5), CONTINUE, 5, 3, 8),
        (opened(5, 8), CONTINUE, 6, 3, 9),
        (opened(5, 8), CONTINUE, 9, 0, 12),
    ],
)
def test_a_frame_that_overlaps_loses_what_was_seen(
    before: Sequence, flags: Flags, clock: int, skip: int, last: int
) -> None:
    taken = step(before, flags, clock, count=4)
    assert taken.skip == skip
    assert (taken.after.last_commit if flags is OUTSIDE else taken.after.last_continue) == last


@pytest.mark.long
@pytest.mark.parametrize("clock_max", [8, 30])
def test_random_journals_mean_what_the_oracle_says(clock_max: int) -> None:
    """The sequencer and the oracle agree on every outcome."""
    rng = Random(clock_max)
    refused = shown = rolled_back = 0
    for _ in range(6_000):
        oracle, states = JournalOracle(), dict[Producer, Sequence]()
        begins: dict[Producer, int] = {}
        for frame in random_frames(rng, 2, clock_max, 14):
            who = frame.producer
            visible_before = len(oracle.visible)
            was_open = oracle.is_open(who)
            before = states.get(who, Sequence())
            try:
                taken = sequence(before, frame.flags, frame.clock, frame.documents, frame.offset)
            except ProtocolError:
                refused += 1
                with pytest.raises(ProtocolError):
                    oracle.take(frame)
                break
            oracle.take(frame)
            states[who] = taken.after
            if not was_open:
                begins[who] = frame.offset
            assert taken.after.begin == (begins[who] if oracle.is_open(who) else None)
            became_visible = len(oracle.visible) - visible_before
            if taken.outcome is FrameOutcome.COMMIT and frame.flags is OUTSIDE:
                assert became_visible == frame.documents - taken.skip
            else:
                assert (became_visible > 0) is (taken.outcome is FrameOutcome.COMMIT)
            if taken.outcome is FrameOutcome.ROLLBACK:
                rolled_back += 1
                assert was_open
                assert not became_visible
                assert taken.after.last_commit == before.last_commit
            shown += became_visible
    assert min(refused, shown, rolled_back) > 500


def test_documents_of_a_dead_span_do_not_count_as_pending() -> None:
    """The first pending document is the first new one."""
    begun = step(unknown(closed(0, 9)), CONTINUE, 8, count=5)
    assert (begun.skip, begun.after.first) == (2, 10)
    assert step(begun.after, ACK, 9).outcome is FrameOutcome.ROLLBACK
