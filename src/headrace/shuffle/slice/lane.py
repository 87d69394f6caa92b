"""One lane of a Slice: whose frame comes next, and what the Queues have of it. Pure.

The lane makes all transitions of its reads' phases. A read is in `_queued` while it is queued and
in `_gated` while it is gated, ranked by the adjusted clock of its next frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.clock import Clock
from headrace.ids import Offset
from headrace.journal.contract import Frame
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.slice.journal_read import Event, Phase, Ranking, Read
from headrace.shuffle.slice.lane_progress import LaneProgress
from headrace.shuffle.slice.read_ahead import AtMostBytes, ReadAhead


class Lane:
    def __init__(
        self,
        number: int,
        members: int,
        progress: LaneProgress,
        fetch_bytes: int,
        ahead_bytes: int,
        patience: int,
        at_most_bytes: AtMostBytes,
    ) -> None:
        self.number = number
        self.progress = progress
        self.is_held = False
        """True while the Session wants nothing more of the lane."""
        self.sent_clock = 0
        """The greatest `low` of the blocks that were sent."""
        self.unwritten_bytes = [0] * members
        """By member, the size of the blocks for which its Queue gave no credit back yet."""
        self.read_ahead = ReadAhead(fetch_bytes, ahead_bytes, patience, at_most_bytes, self._let_go)
        self._queued = Ranking()
        self._gated = Ranking()
        self._behind: frozenset[int] | None = None
        """The only places that go on; None if all do."""

    # -- what happens to reads -------------------------------------------------------------

    def start(self, read: Read) -> None:
        self.progress.started(read.place, read.journal)
        if self._must_wait(read):
            read.apply(Event.HOLD)
        self.read_ahead.grown(read)

    def stop(self, read: Read) -> None:
        read.apply(Event.STOP)
        self._queued.drop(read)
        self._gated.drop(read)
        self.read_ahead.stop(read)
        self.progress.stopped(read.place, read.journal)

    def grow(self, read: Read, head: Offset) -> None:
        read.head = head
        self.read_ahead.grown(read)

    def fetched(self, read: Read, frames: Sequence[Frame], through: Offset) -> None:
        self.read_ahead.arrived(read, frames, through)
        if read.phase is Phase.PENDING:
            self._queue(read)
        self.read_ahead.want(read)

    def hold(self, reads: Iterable[Read], behind: frozenset[int] | None) -> None:
        """Let only the reads of the places `behind` go on, or all reads if it is None."""
        if behind == self._behind:
            return
        self._behind = behind
        for read in reads:
            if self._must_wait(read):
                if read.phase is not Phase.HELD:
                    read.apply(Event.HOLD)
                    self._queued.drop(read)
                    self._gated.drop(read)
                    self.read_ahead.parked(read)
            elif read.phase is Phase.HELD:
                read.apply(Event.RELEASE)
                self._queue(read)
                self.read_ahead.unparked(read)

    def _must_wait(self, read: Read) -> bool:
        return self._behind is not None and read.place not in self._behind

    def _let_go(self, read: Read) -> None:
        """The last frame of the read made room for others. A parked read stays parked."""
        if read.phase is Phase.QUEUED:
            read.apply(Event.LET_GO)
            self._queued.drop(read)

    def _queue(self, read: Read) -> None:
        """Let a pending read wait for its turn, if a frame of it is here."""
        if read.frames:
            read.apply(Event.READY)
            self._queued.put(read, read.frames[0].clock)

    # -- order -----------------------------------------------------------------------------

    def open_gates(self, now: Clock) -> None:
        """Let the gated reads go on that are due now."""
        while self._gated.least <= now and (read := self._gated.first):
            self._gated.drop(read)
            read.apply(Event.DUE)
            self._queue(read)
            self.read_ahead.unparked(read)

    def first(self, now: Clock) -> int:
        """The adjusted clock of the first frame that is here and due; infinite if there is none.

        It gates the reads that it finds to be not due.
        """
        while (read := self._queued.first) is not None:
            clock = self._queued.least
            if clock <= now or not read.source.delay:
                return clock
            self._queued.drop(read)
            read.apply(Event.GATE)
            self._gated.put(read, clock)
            self.read_ahead.parked(read)
        return INFINITE

    @property
    def unfetched_clock(self) -> int:
        """Every frame below this adjusted clock is here, or not worth waiting for."""
        return self.read_ahead.unfetched_clock

    def fetch(self, now: Clock) -> list[Read]:
        """Return the reads to fetch: see `ReadAhead.fetch`."""
        return self.read_ahead.fetch(now, self.first(now))

    def take(self) -> tuple[Read, Frame]:
        """Remove the first frame; `first` has just found one. Call `taken` afterwards."""
        read = self._queued.first
        assert read is not None
        self._queued.drop(read)
        read.apply(Event.TAKE)
        return read, self.read_ahead.take(read)

    def taken(self, read: Read) -> None:
        """Let the read wait for its next turn."""
        read.apply(Event.TAKEN)
        self._queue(read)
        self.read_ahead.want(read)

    @property
    def is_idle(self) -> bool:
        """True if all that is known of its journals is taken."""
        return self.read_ahead.is_idle

    def wake_at(self) -> int:
        """The time at which there is something to do though nothing happens; infinite for never."""
        return min(self._gated.least, self.read_ahead.late_at)

    def validate(self, reads: Iterable[Read]) -> None:
        """Assert what holds between two events; `reads` are all reads of the lane."""
        reads = list(reads)
        for phase, ranking in ((Phase.QUEUED, self._queued), (Phase.GATED, self._gated)):
            ranks, inside = ranking.ranks(), [read for read in reads if read.phase is phase]
            assert ranks.keys() == {read.place for read in inside}, f"{phase} reads"
            for read in inside:
                first = read.frames[0].clock if read.frames else read.unfetched_clock
                assert ranks[read.place] == first, f"{read.name}: its turn"
        for read in reads:
            assert (read.phase is Phase.HELD) == self._must_wait(read), f"{read.name}: held"
            read.validate()
        assert min(self.unwritten_bytes) >= 0, "a Queue gave back more credit than it got"
        self.read_ahead.validate(reads)
        self.progress.validate(reads)
