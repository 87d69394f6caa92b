"""What a lane fetches ahead, and which frames it lets go to make room. Pure.

The frames that are here, and those that are being fetched, fit into the room of their lane, however
many journals it reads. The lane fetches in the order in which it takes frames: every read knows the
least adjusted clock that its unfetched frames can have, and the read with the least such clock
fetches first. If there is no room for it, the lane lets later frames go: first those of parked
reads, then the last in order. It keeps their clocks, so that nobody waits for them before their
turn, and fetches them again when their turn comes near.

If no frame is here and none is being fetched, a read may fetch although there is no room. So a lane
can always fetch its next frame, unless an earlier frame is here or being fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.clock import Clock
from headrace.ids import Offset
from headrace.journal.contract import Frame
from headrace.settings import MIB
from headrace.shuffle.slice.journal_read import Phase, Ranking, Read, WaitingFrame

_SHARES = 2
"""A read has one share of the room for the frames that are here, and one for those to come."""
_SHARE_MIN = 1024
"""No share is smaller than `fetch_bytes` divided by this: smaller fetches cost too much."""
_FRAME_BYTES = 1 * MIB
"""About the size of a frame in a journal of which no frame was seen yet."""
_FRAMES_MIN = 2
"""A read whose frames exceed its share has this many here, so that not all wait for each frame."""
_PARKED = 1 << 65
"""Frames of parked reads go before all others, whatever their clocks."""


AtMostBytes = Callable[[Offset, Offset], int]
"""About how many bytes begin in [offset, through); a large number if that is not known."""


class ReadAhead:
    def __init__(
        self,
        fetch_bytes: int,
        ahead_bytes: int,
        patience: int,
        at_most_bytes: AtMostBytes,
        on_empty: Callable[[Read], None],
    ) -> None:
        """Fetch up to `fetch_bytes` of a journal at once, into a room of `ahead_bytes`.

        It calls `on_empty` with a read whose last frame it lets go.
        """
        self._at_most_bytes = at_most_bytes
        self._on_empty = on_empty
        self._fetch_bytes = fetch_bytes
        self._ahead_bytes = ahead_bytes
        self._patience = patience
        self._wanting = Ranking()
        """Reads that should fetch, by `unfetched_clock`."""
        self._fetching = Ranking()
        """Reads that are being fetched, by the time when they are late. Late ones are not in it."""
        self._fetching_latest = Ranking()
        """The same reads, by `unfetched_clock`, the greatest first."""
        self._awaited = Ranking()
        """Those of them that other reads wait for, by `unfetched_clock`."""
        self._disposable = Ranking()
        """Reads with frames that may go, the first to go first. None of them is in `_fetching`."""
        self._fetches = 0
        """The number of fetches so far."""
        self._frames = 0
        self._frames_bytes = 0
        self._requested_bytes = 0
        self._incomplete = 0
        """The number of reads with frames that are not here."""
        self._share_bytes = fetch_bytes

    @property
    def held_bytes(self) -> int:
        """The frames that are here, and what the fetches under way are expected to bring."""
        return self._frames_bytes + self._requested_bytes

    @property
    def unfetched_clock(self) -> int:
        """The least adjusted clock that is not here and that others wait for."""
        return min(self._awaited.least, self._wanting.least)

    @property
    def share_bytes(self) -> int:
        """The most to fetch of one journal at once."""
        return self._share_bytes

    @property
    def is_idle(self) -> bool:
        """True if no frame is here and there is nothing to fetch."""
        return not (self._frames or self._incomplete)

    @property
    def late_at(self) -> int:
        """The time at which others stop waiting for a fetch; infinite if they wait for none."""
        return self._fetching.least

    # -- what happens to reads -------------------------------------------------------------

    def grown(self, read: Read) -> None:
        """The head of the journal moved."""
        self._count(read)
        self.want(read)

    def want(self, read: Read) -> None:
        """Plan to fetch more of the read, if there is more and it has few frames here."""
        if (
            read.offset < read.head
            and (read.frames_bytes < self._share_bytes or len(read.frames) < _FRAMES_MIN)
            and not (read.fetch_number or read.is_parked or read in self._wanting)
        ):
            self._wanting.put(read, read.unfetched_clock)

    def parked(self, read: Read) -> None:
        """Nobody wants the next frame of the read for a while."""
        self._wanting.drop(read)
        self._rank(read)

    def unparked(self, read: Read) -> None:
        """The next frame of the read is wanted again."""
        self._rank(read)
        self.want(read)

    def take(self, read: Read) -> Frame:
        """Remove the next frame of the read."""
        _, frame = read.frames.popleft()
        self._removed(read, frame)
        if not read.frames:
            self._disposable.drop(read)
        return frame

    def stop(self, read: Read) -> None:
        """Forget the stopped read."""
        while read.frames:
            self.take(read)
        self._end_fetch(read)
        self._wanting.drop(read)
        self._count(read)

    def arrived(self, read: Read, frames: Sequence[Frame], through: Offset) -> None:
        """The read's Fetch brought these frames, and there are no others below `through`."""
        self._end_fetch(read)
        for frame in frames:
            # An ACK of clock 0 rolls back what precedes it: it is due when that is.
            read.unfetched_clock = max(read.unfetched_clock, read.source.adjusted(frame.clock))
            read.frames.append(WaitingFrame(read.unfetched_clock, frame))
            read.frames_bytes += frame.bytes
            read.frame_bytes_max = max(read.frame_bytes_max, frame.bytes)
            self._frames_bytes += frame.bytes
        self._frames += len(frames)
        read.offset = frames[-1].end if frames else through
        read.is_backlog = read.offset < read.head
        self._count(read)
        self._rank(read)
        # Frames may be larger than expected.
        while self.held_bytes > self._ahead_bytes and self._frames > 1:
            if not self._let_go_beyond(self._latest_fetching):
                break

    # -- fetching --------------------------------------------------------------------------

    def fetch(self, now: Clock, first: int) -> list[Read]:
        """Return the reads to fetch, each from its `offset` on, up to `share_bytes`.

        `first` is the adjusted clock of the first frame that is here, infinite if there is none.
        """
        while self._fetching.least <= now and (late := self._fetching.first):
            self._stop_waiting(late)
            self._rank(late)
        fetched = []
        while (read := self._wanting.first) is not None:
            # The last frame may exceed the share, by its size if that is known.
            unknown_bytes = min(_FRAME_BYTES, self._fetch_bytes)
            size = self._share_bytes + (read.frame_bytes_max or unknown_bytes)
            size = min(size, self._at_most_bytes(read.offset, read.head))
            if not self._make_room(size, read.unfetched_clock, first):
                break
            self._wanting.drop(read)
            self._fetches += 1
            read.fetch_number = self._fetches
            read.requested_bytes = size
            self._requested_bytes += size
            self._fetching.put(read, now + self._patience)
            self._fetching_latest.put(read, -read.unfetched_clock)
            if read.is_backlog:
                self._awaited.put(read, read.unfetched_clock)
            self._rank(read)
            fetched.append(read)
        return fetched

    def _make_room(self, size: int, clock: int, first: int) -> bool:
        """Let frames go until there is room to fetch what begins at `clock`. True if there is."""
        # The lane would soon want frames of about the time of those being fetched again. But if
        # everything waits for this read, all frames after it may go.
        is_next = clock < first and clock <= self._awaited.least
        beyond = clock if is_next else max(clock, self._latest_fetching)
        while self.held_bytes + size > self._ahead_bytes:
            if not self._let_go_beyond(beyond):
                return not self._frames and not self._fetching
        return True

    @property
    def _latest_fetching(self) -> int:
        return -self._fetching_latest.least if self._fetching_latest else 0

    # -- letting frames go -----------------------------------------------------------------

    def _rank(self, read: Read) -> None:
        """Update the read's rank among those whose frames may go."""
        if read.frames and read not in self._fetching:
            parked = _PARKED if read.is_parked else 0
            self._disposable.put(read, -read.frames[-1].clock - parked)
        else:
            self._disposable.drop(read)

    def _let_go_beyond(self, clock: int) -> bool:
        """Let one frame go if it is parked or later than `clock`, and keep its clock only."""
        read = self._disposable.first
        if read is None or not (read.is_parked or read.frames[-1].clock > clock):
            return False
        frame_clock, frame = read.frames.pop()
        self._removed(read, frame)
        # A late answer would follow the frame that goes.
        self._end_fetch(read)
        read.offset, read.unfetched_clock, read.is_backlog = frame.offset, frame_clock, True
        if not read.frames:
            self._on_empty(read)
        self._rank(read)
        self._wanting.drop(read)
        self._count(read)
        self.want(read)
        return True

    # -- counting --------------------------------------------------------------------------

    def _removed(self, read: Read, frame: Frame) -> None:
        read.frames_bytes -= frame.bytes
        self._frames_bytes -= frame.bytes
        self._frames -= 1

    def _end_fetch(self, read: Read) -> None:
        """The read's Fetch is answered, or nobody wants the answer any more."""
        self._stop_waiting(read)
        self._requested_bytes -= read.requested_bytes
        read.fetch_number = read.requested_bytes = 0

    def _stop_waiting(self, read: Read) -> None:
        for ranking in (self._fetching, self._fetching_latest, self._awaited):
            ranking.drop(read)

    def _count(self, read: Read) -> None:
        """Update the number of incomplete reads, and the share that each of them has."""
        is_incomplete = read.offset < read.head and read.phase is not Phase.STOPPED
        if is_incomplete != read.is_incomplete:
            read.is_incomplete = is_incomplete
            self._incomplete += 1 if is_incomplete else -1
            fair_bytes = self._ahead_bytes // (_SHARES * max(1, self._incomplete))
            least_bytes = max(1, self._fetch_bytes // _SHARE_MIN)
            self._share_bytes = max(least_bytes, min(self._fetch_bytes, fair_bytes))

    def validate(self, reads: Iterable[Read]) -> None:
        """Assert what holds between two events; `reads` are all reads of the lane."""
        reads = list(reads)
        assert self._frames == sum(len(read.frames) for read in reads), "frames"
        assert self._frames_bytes == sum(read.frames_bytes for read in reads), "frames_bytes"
        assert self._requested_bytes == sum(read.requested_bytes for read in reads), "requested"
        assert self._incomplete == sum(read.is_incomplete for read in reads), "incomplete"
        wanting, fetching = self._wanting.ranks(), self._fetching.ranks()
        assert self._fetching_latest.ranks().keys() == fetching.keys(), "fetches are ranked twice"
        assert self._awaited.ranks().keys() <= fetching.keys(), "a read waits for no fetch"
        assert self._disposable.ranks().keys() == {
            read.place for read in reads if read.frames and read.place not in fetching
        }, "frames that may go"
        for read in reads:
            assert read.is_incomplete == (read.offset < read.head), f"{read.name}: incomplete"
            assert read.fetch_number or read.place not in fetching, f"{read.name}: no Fetch"
            if read.place in wanting:
                assert read.offset < read.head, f"{read.name}: it wants more than there is"
                assert not read.fetch_number, f"{read.name}: it is fetched already"
                assert not read.is_parked, f"{read.name}: it is parked and wants frames"
                assert wanting[read.place] == read.unfetched_clock, f"{read.name}: its rank"
            elif read.phase is Phase.PENDING and read.is_incomplete:
                assert read.fetch_number, f"{read.name}: it would never go on"
