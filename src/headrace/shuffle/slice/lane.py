"""One lane of a Slice: whose frame comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.clock import Clock
from headrace.ids import Offset
from headrace.journal.contract import Frame
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.slice.ranking import Ranking
from headrace.shuffle.slice.read import Phase, Read
from headrace.shuffle.slice.read_ahead import ReadAhead


class Lane:
    def __init__(self, number: int, fetching: ReadAhead) -> None:
        self.number = number
        self._fetching = fetching
        self._queued = Ranking()
        self._gated = Ranking()
        self._behind: frozenset[int] | None = None
        """Only these places go on; None if all do."""

    # -- what happens to reads -------------------------------------------------------------

    def start(self, read: Read) -> None:
        if self._waits(read):
            read.phase = Phase.HELD
        self._fetching.grown(read)

    def stop(self, read: Read) -> None:
        read.stopped = True
        self._queued.drop(read)
        self._gated.drop(read)
        self._fetching.stop(read)

    def grow(self, read: Read, head: Offset) -> None:
        read.head = head
        self._fetching.grown(read)

    def fetched(self, read: Read, frames: Sequence[Frame], through: Offset) -> None:
        self._fetching.arrived(read, frames, through)
        if read.phase is Phase.PENDING and read.frames:
            self._enter(self._queued, read, Phase.QUEUED)
        self._fetching.want(read)

    def hold(self, reads: Iterable[Read], behind: frozenset[int] | None) -> None:
        """Let only the reads of these places go on, or all reads if `behind` is None."""
        self._behind = behind
        for read in reads:
            if self._waits(read) and read.phase is not Phase.HELD:
                self._queued.drop(read)
                self._gated.drop(read)
                read.phase = Phase.HELD
                self._fetching.parked(read)
            elif read.phase is Phase.HELD and not self._waits(read):
                read.phase = Phase.PENDING
                if read.frames:
                    self._enter(self._queued, read, Phase.QUEUED)
                self._fetching.opened(read)

    def _waits(self, read: Read) -> bool:
        return self._behind is not None and read.place not in self._behind

    # -- order -----------------------------------------------------------------------------

    def open_gates(self, now: Clock) -> None:
        while self._gated.least <= now and (read := self._gated.first):
            self._gated.drop(read)
            if read.frames:
                self._enter(self._queued, read, Phase.QUEUED)
            else:
                read.phase = Phase.PENDING
            self._fetching.opened(read)

    def first(self, now: Clock) -> int:
        """The adjusted clock of the first frame that is here and due; infinite if there is none."""
        while (read := self._queued.first) is not None:
            at = self._queued.least
            if read.phase is not Phase.QUEUED:
                self._queued.drop(read)
            elif at > now and read.source.delay:
                self._queued.drop(read)
                self._enter(self._gated, read, Phase.GATED)
                self._fetching.parked(read)
            else:
                return at
        return INFINITE

    def edge(self) -> int:
        """Below it everything is here, or not worth waiting for."""
        return self._fetching.edge

    def ask(self, now: Clock) -> list[Read]:
        """The reads to fetch: see `ReadAhead.ask`."""
        return self._fetching.ask(now, self.first(now))

    def take(self) -> tuple[Read, Frame]:
        """The first frame; `first` has just said that there is one."""
        read = self._queued.first
        assert read is not None
        self._queued.drop(read)
        read.phase = Phase.ACTIVE
        return read, self._fetching.take(read)

    def taken(self, read: Read) -> None:
        """The read waits for its next turn."""
        if read.frames:
            self._enter(self._queued, read, Phase.QUEUED)
        else:
            read.phase = Phase.PENDING
        self._fetching.want(read)

    @property
    def share_bytes(self) -> int:
        return self._fetching.share_bytes

    @property
    def is_idle(self) -> bool:
        return self._fetching.is_idle

    def wake_at(self) -> int:
        """When there is something to do though nothing happens; infinite for never."""
        return min(self._gated.least, self._fetching.late_at)

    def _enter(self, ranking: Ranking, read: Read, phase: Phase) -> None:
        read.phase = phase
        ranking.put(read, read.frames[0].at)
