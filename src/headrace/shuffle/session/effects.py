"""What a Session's state asks its actor to do, in this order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.shuffle.checkpoint import NextCheckpoint
from headrace.shuffle.messages import ToSlice


@dataclass(frozen=True, slots=True)
class SendSlice:
    """Send a message to the Slice of one member."""

    member: int
    message: ToSlice


@dataclass(frozen=True, slots=True)
class SendAllSlices:
    """Send a message to the Slice of every member."""

    message: ToSlice


@dataclass(frozen=True, slots=True)
class AnswerPoll:
    """Answer the poll that is open: with None if it was given up, or the cut is at its end."""

    checkpoint: NextCheckpoint | None


Effect = SendSlice | SendAllSlices | AnswerPoll
