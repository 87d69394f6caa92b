"""One journal under one binding, as a Slice reads it. Pure."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from headrace.clock import ZERO, Clock
from headrace.ids import FIRST, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source
from headrace.shuffle.messages import ReadStart


class Phase(Enum):
    PENDING = "pending"
    GATED = "gated"
    QUEUED = "queued"
    ACTIVE = "active"
    HELD = "held"


class Producing:
    """One producer in one read."""

    __slots__ = ("extent", "first", "pending", "sequence")

    def __init__(self, last_commit: Clock, *, from_first: bool) -> None:
        """`from_first`: the journal is read from its first document on."""
        self.sequence = Sequenced(last_commit, is_known=from_first or last_commit > ZERO)
        self.first = ZERO
        """The clock of the first document of the open span."""
        self.pending = 0
        """How many documents the open span has."""
        self.extent = 0
        """The members that its documents were routed to, as bits."""

    @property
    def is_open(self) -> bool:
        return self.sequence.begin is not None


class Waiting(NamedTuple):
    """A frame whose turn comes at an adjusted clock."""

    at: int
    frame: Frame


class Read:
    """One journal under one binding."""

    __slots__ = (
        *("place", "journal", "name", "source", "producers", "head", "taken", "phase"),
        *("frames", "frames_bytes", "frame_bytes", "offset", "edge", "behind", "unfinished"),
        *("fetch", "asked_bytes", "stopped", "_from_first"),
    )

    def __init__(self, start: ReadStart, source: Source) -> None:
        self.place = start.place
        self.journal = start.journal
        self.name = start.name
        self.source = source
        self._from_first = start.offset == FIRST
        self.producers = {
            producer: Producing(clock, from_first=self._from_first)
            for producer, clock in start.producers
        }
        self.head = start.head
        self.taken = start.offset
        """Everything below is taken."""
        self.phase = Phase.PENDING
        self.frames: deque[Waiting] = deque()
        self.frames_bytes = 0
        self.frame_bytes = 0
        """Of the largest frame so far."""
        self.offset = start.offset
        """What is at and above it is not here."""
        self.edge = 0
        """The least adjusted clock that it can have."""
        self.behind = True
        """It is a backlog, or not known to be none."""
        self.unfinished = False
        """Counted as one of which not everything is here."""
        self.fetch = 0
        """The number of the Fetch that is under way, or 0."""
        self.asked_bytes = 0
        """What it may bring."""
        self.stopped = False

    def producing(self, producer: Producer) -> Producing:
        if (found := self.producers.get(producer)) is None:
            found = self.producers[producer] = Producing(ZERO, from_first=self._from_first)
        return found

    @property
    def is_parked(self) -> bool:
        """Whether its next frame is not wanted for a while."""
        return self.phase in (Phase.GATED, Phase.HELD)

    @property
    def has_more(self) -> bool:
        """Whether something of it is known of and not taken."""
        return bool(self.frames or self.fetch or self.offset < self.head)
