"""One journal under one binding, as a Slice reads it. Pure."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from headrace.clock import ZERO, Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source


class Start(NamedTuple):
    """Read a journal under a binding from an offset on; its producers stand where they say."""

    place: int
    journal: JournalId
    name: str
    binding: int
    offset: Offset
    head: Offset
    producers: tuple[tuple[Producer, Clock], ...] = ()


class Phase(Enum):
    PENDING = "pending"
    GATED = "gated"
    QUEUED = "queued"
    ACTIVE = "active"


class Producing:
    """One producer in one read."""

    __slots__ = ("extent", "first", "pending", "sequence")

    def __init__(self, last_commit: Clock) -> None:
        self.sequence = Sequenced(last_commit)
        self.first = ZERO
        """The clock of the first document of the open span."""
        self.pending = 0
        """How many documents the open span has."""
        self.extent = 0
        """The members that its documents were routed to, as bits."""

    @property
    def is_open(self) -> bool:
        return self.sequence.begin is not None


class Read:
    """One journal under one binding."""

    __slots__ = (
        *("place", "journal", "name", "source", "offset", "head", "taken", "last", "frames"),
        *("frames_bytes", "phase", "fetch", "fetching_since", "behind", "producers", "stopped"),
    )

    def __init__(self, start: Start, source: Source) -> None:
        self.place = start.place
        self.journal = start.journal
        self.name = start.name
        self.source = source
        self.offset = start.offset
        """From here on it is yet to be fetched."""
        self.head = start.head
        self.taken = start.offset
        """Everything below is taken."""
        self.last = 0
        """The adjusted clock of what was taken last."""
        self.frames: deque[Frame] = deque()
        self.frames_bytes = 0
        self.phase = Phase.PENDING
        self.fetch = 0
        """The number of the Fetch that is under way, or 0."""
        self.fetching_since = 0
        self.behind = True
        """The fetch continues a backlog, or is the first."""
        self.producers = {producer: Producing(clock) for producer, clock in start.producers}
        self.stopped = False

    def producing(self, producer: Producer) -> Producing:
        if (found := self.producers.get(producer)) is None:
            found = self.producers[producer] = Producing(ZERO)
        return found

    @property
    def has_more(self) -> bool:
        """Whether something of it is known of and not taken."""
        return bool(self.frames or self.fetch or self.offset < self.head)

    @property
    def adjusted(self) -> int:
        """The adjusted clock of its next frame."""
        frame = self.frames[0]
        # An ACK of clock 0 rolls back what was taken: it is due when that was.
        return max(self.source.adjusted(frame.clock), self.last)
