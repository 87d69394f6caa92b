"""Decides what each frame means to a reader, given what its producer wrote before. Pure.

Only this module knows the rules of sequencing. The state is per (journal, producer):

| flags    | clock against state                     | span   | outcome                          |
|----------|-----------------------------------------|--------|----------------------------------|
| OUTSIDE  | <= last commit                          | closed | DUPLICATE                        |
| OUTSIDE  | above                                   | closed | COMMIT, of itself                |
| OUTSIDE  | any                                     | open   | protocol error                   |
| CONTINUE | <= last commit or last continue         | any    | DUPLICATE                        |
| CONTINUE | above                                   | closed | BEGIN                            |
| CONTINUE | above                                   | open   | EXTEND                           |
| ACK      | above last commit                       | closed | EMPTY (a commit of nothing)      |
| ACK      | above last commit, >= every pending     | open   | COMMIT, of the span              |
| ACK      | above last commit, below a pending one  | open   | protocol error                   |
| ACK      | <= last commit                          | closed | DUPLICATE                        |
| ACK      | == last commit                          | open   | ROLLBACK (clean)                 |
| ACK      | < last commit                           | open   | ROLLBACK (deep)                  |
| ACK      | < every pending one, commits not known  | open   | ROLLBACK                         |

A rollback never moves `last_commit` back, and later clocks are above everything rolled back.
`last_continue` remembers what the reader saw, so a repeated frame of a dead span stays a duplicate.
Of a frame that overlaps earlier ones, the reader takes only the new documents.

A reader that begins in the middle of a journal does not know a producer's last commit before it. An
ACK below all pending documents then repeats such a commit, and so it rolls back.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from headrace.clock import ZERO, Clock
from headrace.errors import ProtocolError
from headrace.ids import Offset


class Flags(IntEnum):
    OUTSIDE = 0
    CONTINUE = 1
    ACK = 2


class FrameOutcome(IntEnum):
    DUPLICATE = 0
    BEGIN = 1
    EXTEND = 2
    COMMIT = 3
    EMPTY = 4
    ROLLBACK = 5


class Sequence(NamedTuple):
    """The state of one producer in one journal. `begin` is None while no span is open."""

    last_commit: Clock = ZERO
    last_continue: Clock = ZERO
    begin: Offset | None = None
    first: Clock = ZERO
    """The clock of the first pending document."""
    is_known: bool = True
    """False while the producer may have a commit above `last_commit` that the reader missed."""


class Step(NamedTuple):
    outcome: FrameOutcome
    after: Sequence
    skip: int = 0
    """How many of the frame's first documents the reader has seen before."""


def sequence(before: Sequence, flags: Flags, clock: Clock, count: int, offset: Offset) -> Step:
    """Return what a frame of `count` documents from `clock` on does to the state `before`."""
    if flags is Flags.ACK:
        return _ack(before, clock)
    last = Clock(clock + count - 1)
    if flags is Flags.OUTSIDE:
        if before.begin is not None:
            raise ProtocolError(
                f"an OUTSIDE document of clock {clock} at offset {offset} stands inside the span"
                f" that the same producer opened at {before.begin}",
                do="its publisher must commit or roll back first",
            )
        seen = before.last_commit
        after = Sequence(last, before.last_continue)
        outcome = FrameOutcome.COMMIT
    else:
        seen = max(before.last_commit, before.last_continue)
        begin = offset if before.begin is None else before.begin
        first = Clock(max(clock, seen + 1)) if before.begin is None else before.first
        after = Sequence(before.last_commit, last, begin, first, before.is_known)
        outcome = FrameOutcome.BEGIN if before.begin is None else FrameOutcome.EXTEND
    if last <= seen:
        return Step(FrameOutcome.DUPLICATE, before)
    return Step(outcome, after, skip=max(0, seen + 1 - clock))


def _ack(before: Sequence, clock: Clock) -> Step:
    if before.begin is None:
        if clock <= before.last_commit:
            return Step(FrameOutcome.DUPLICATE, before)
        # The ACK may repeat a commit that is older than one that the reader missed.
        empty = Sequence(clock, before.last_continue, is_known=before.is_known)
        return Step(FrameOutcome.EMPTY, empty)
    if clock <= before.last_commit or (clock < before.first and not before.is_known):
        closed = Sequence(before.last_commit, before.last_continue, is_known=before.is_known)
        return Step(FrameOutcome.ROLLBACK, closed)
    if clock < before.last_continue:
        raise ProtocolError(
            f"an ACK of clock {clock} stands below the pending document of clock"
            f" {before.last_continue}",
            do="its publisher must acknowledge everything it wrote",
        )
    return Step(FrameOutcome.COMMIT, Sequence(clock, before.last_continue))
