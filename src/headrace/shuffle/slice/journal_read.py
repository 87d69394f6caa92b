"""A read: one journal under one binding, its phases, and rankings of reads. Pure.

Everything about a read's phases is in this file. A read is

- pending   while no frame of it is here;
- queued    while its next frame waits for its turn;
- gated     while its next frame is not due yet, because of its read delay;
- active    while the Slice takes its next frame;
- held      while it waits for other reads to catch up;
- stopped   for ever, once the Session has stopped it.

These are all transitions. `Read.apply` makes them, and refuses every other one:

    pending   READY    → queued     a frame of it is here
    pending   HOLD     → held       other reads must catch up
    pending   STOP     → stopped    the Session stops it
    queued    TAKE     → active     the Slice takes its next frame
    queued    GATE     → gated      its next frame is not due
    queued    LET_GO   → pending    its last frame made room for others
    queued    HOLD     → held
    queued    STOP     → stopped
    gated     DUE      → pending    its next frame is due; READY follows if the frame is here
    gated     HOLD     → held
    gated     STOP     → stopped
    active    TAKEN    → pending    the frame is taken; READY follows if another frame is here
    held      RELEASE  → pending    the others caught up; READY follows if a frame is here
    held      STOP     → stopped
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from headrace.clock import ZERO, Clock
from headrace.errors import REPORT, HeadraceError
from headrace.ids import FIRST, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import INFINITE, Source
from headrace.shuffle.messages import ReadStart

_STALE_MIN = 64
"""A ranking keeps at least this many entries that no longer hold before it sweeps them out."""


class Phase(StrEnum):
    PENDING = "pending"
    QUEUED = "queued"
    GATED = "gated"
    ACTIVE = "active"
    HELD = "held"
    STOPPED = "stopped"


class Event(StrEnum):
    READY = "ready"
    TAKE = "take"
    TAKEN = "taken"
    GATE = "gate"
    DUE = "due"
    LET_GO = "let go"
    HOLD = "hold"
    RELEASE = "release"
    STOP = "stop"


TRANSITIONS: dict[Phase, dict[Event, Phase]] = {
    Phase.PENDING: {
        Event.READY: Phase.QUEUED,
        Event.HOLD: Phase.HELD,
        Event.STOP: Phase.STOPPED,
    },
    Phase.QUEUED: {
        Event.TAKE: Phase.ACTIVE,
        Event.GATE: Phase.GATED,
        Event.LET_GO: Phase.PENDING,
        Event.HOLD: Phase.HELD,
        Event.STOP: Phase.STOPPED,
    },
    Phase.GATED: {
        Event.DUE: Phase.PENDING,
        Event.HOLD: Phase.HELD,
        Event.STOP: Phase.STOPPED,
    },
    Phase.ACTIVE: {
        Event.TAKEN: Phase.PENDING,
    },
    Phase.HELD: {
        Event.RELEASE: Phase.PENDING,
        Event.STOP: Phase.STOPPED,
    },
    Phase.STOPPED: {},
}


class ReadProducer:
    """One producer in one read."""

    __slots__ = ("extent", "pending", "sequence")

    def __init__(self, last_commit: Clock, *, from_first: bool) -> None:
        """`from_first` is True if the Slice reads the journal from its first document on."""
        self.sequence = Sequenced(last_commit, is_known=from_first or last_commit > ZERO)
        self.pending = 0
        """The number of documents in the open span."""
        self.extent = 0
        """The members that got documents of the open span, one bit each."""

    @property
    def is_open(self) -> bool:
        return self.sequence.begin is not None


class WaitingFrame(NamedTuple):
    """A frame that is here, and the adjusted clock at which its turn comes."""

    clock: int
    frame: Frame


class Read:
    """One journal under one binding."""

    __slots__ = (
        *("place", "journal", "name", "source", "producers", "head", "taken", "phase"),
        *("frames", "frames_bytes", "frame_bytes_max", "offset", "unfetched_clock"),
        *("is_backlog", "is_incomplete", "fetch_number", "requested_bytes", "_from_first"),
    )

    def __init__(self, start: ReadStart, source: Source) -> None:
        self.place = start.place
        self.journal = start.journal
        self.name = start.name
        self.source = source
        self._from_first = start.offset == FIRST
        self.producers = {
            producer: ReadProducer(clock, from_first=self._from_first)
            for producer, clock in start.producers
        }
        self.head = start.head
        self.taken = start.offset
        """The Slice has taken everything below this offset."""
        self.phase = Phase.PENDING
        """Only `apply` changes it."""
        self.frames: deque[WaitingFrame] = deque()
        """The frames that are here, in the order of the journal."""
        self.frames_bytes = 0
        self.frame_bytes_max = 0
        """The size of the largest frame so far."""
        self.offset = start.offset
        """Frames at and above this offset are not here."""
        self.unfetched_clock = 0
        """No frame at or above `offset` has a lesser adjusted clock."""
        self.is_backlog = True
        """False if the last fetch reached the head, so that what follows is new."""
        self.is_incomplete = False
        """True if the read-ahead counts it among the reads with frames that are not here."""
        self.fetch_number = 0
        """The number of the Fetch that is under way, or 0."""
        self.requested_bytes = 0
        """The most that this Fetch is expected to bring."""

    def apply(self, event: Event) -> None:
        """Change the phase as the table says. Raises an error if the table has no such row."""
        after = TRANSITIONS[self.phase].get(event)
        if after is None:
            raise HeadraceError(
                f"the read of {self.name} is {self.phase} and cannot go through {event.name}",
                do=REPORT,
            )
        self.phase = after

    def producer(self, producer: Producer) -> ReadProducer:
        if (found := self.producers.get(producer)) is None:
            found = self.producers[producer] = ReadProducer(ZERO, from_first=self._from_first)
        return found

    @property
    def is_parked(self) -> bool:
        """True if nobody wants its next frame for a while."""
        return self.phase is Phase.GATED or self.phase is Phase.HELD

    @property
    def has_more(self) -> bool:
        """True if the journal is known to have more than the Slice has taken."""
        return bool(self.frames or self.fetch_number or self.offset < self.head)

    def validate(self) -> None:
        """Assert what holds of a read between two events."""
        assert self.phase not in (Phase.ACTIVE, Phase.STOPPED), f"{self.name} is {self.phase}"
        has_frames = bool(self.frames)
        assert has_frames or self.phase is not Phase.QUEUED, f"{self.name}: queued without frames"
        assert not has_frames or self.phase is not Phase.PENDING, f"{self.name}: pending frames"
        assert self.phase is not Phase.GATED or self.source.delay, f"{self.name}: gated, no delay"
        offset, clock = self.taken, 0
        for waiting in self.frames:
            assert waiting.frame.offset >= offset, f"{self.name}: frames out of order"
            assert waiting.clock >= clock, f"{self.name}: adjusted clocks out of order"
            offset, clock = waiting.frame.end, waiting.clock
        assert offset <= self.offset, f"{self.name}: a frame is here twice"
        assert clock <= self.unfetched_clock, f"{self.name}: a frame would come too late"
        assert self.frames_bytes == sum(each.frame.bytes for each in self.frames), self.name
        assert bool(self.requested_bytes) <= bool(self.fetch_number), self.name
        for producer in self.producers.values():
            assert producer.is_open or not (producer.pending or producer.extent), (
                f"{self.name}: a producer without an open span has pending documents"
            )


class Ranking:
    """Reads, ordered by a rank that each is put with. A read that is put again moves.

    The heap keeps entries of reads that moved or were dropped, and removes each when it comes up.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Read]] = []
        self._entries: dict[int, int] = {}
        """By place, the number of the entry that holds."""
        self._entry_number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, read: Read) -> bool:
        return read.place in self._entries

    @property
    def least(self) -> int:
        """The rank of the first read; infinite if there is none."""
        heap, entries = self._heap, self._entries
        while heap:
            rank, place, number, _ = heap[0]
            if entries.get(place) == number:
                return rank
            heappop(heap)
        return INFINITE

    @property
    def first(self) -> Read | None:
        """The read of the least rank."""
        return self._heap[0][3] if self.least < INFINITE else None

    def put(self, read: Read, rank: int) -> None:
        self._entry_number += 1
        self._entries[read.place] = self._entry_number
        heappush(self._heap, (rank, read.place, self._entry_number, read))
        if len(self._heap) > 2 * len(self._entries) + _STALE_MIN:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[1]) == entry[2]]
            heapify(self._heap)

    def drop(self, read: Read) -> None:
        self._entries.pop(read.place, None)

    def ranks(self) -> dict[int, int]:
        """The rank of each read, by place. It looks at everything: for `validate`."""
        return {
            place: rank
            for rank, place, number, _ in self._heap
            if self._entries.get(place) == number
        }
