"""What a lane fetches, and what it lets go of to make room. Pure.

All that is here of a lane, and all that is on its way, fits into the lane's room, however many
journals it has. So that frames can still be taken in order, fetches are made in that order: each
read knows its edge, the least adjusted clock of what is not here of it, and the read of the least
edge is the first to fetch. If it finds no room, frames that come later are let go, those of gated
reads first, then the last in order. Their clocks stay known, so that nobody waits for them before
their turn, and they are fetched again when it comes near.

A read may fetch though there is no room if nothing is here or on its way. So the next in order can
always be fetched, and one that cannot has something before it that will be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.clock import Clock
from headrace.ids import Offset
from headrace.journal.contract import Frame
from headrace.shuffle.slice.ranking import Ranking
from headrace.shuffle.slice.read import Phase, Read, Waiting

_SHARES = 2
"""A read has one share of the room here while the next is on its way."""
_SHARE_MIN = 256
"""The least share, as a part of the greatest: smaller fetches are not worth their while."""
_FRAMES_MIN = 2
"""Of a read, where they are larger than its share: else all would wait for each frame."""
_PARKED = 1 << 65
"""Of two frames to let go of, the gated or held one comes first, whatever their clocks."""


AtMostBytes = Callable[[Offset, Offset], int]
"""About how much what begins in [offset, through) takes, if that can be told; else much."""


class ReadAhead:
    """`fetch_bytes` are asked for at once of one journal, at most; `ahead_bytes` are the room."""

    def __init__(
        self, fetch_bytes: int, ahead_bytes: int, patience: int, at_most_bytes: AtMostBytes
    ) -> None:
        self._at_most_bytes = at_most_bytes
        self._fetch_bytes = fetch_bytes
        self._ahead_bytes = ahead_bytes
        self._patience = patience
        self._wanting = Ranking()
        """To be fetched, by edge."""
        self._asked = Ranking()
        """Being fetched, by when that is late; late ones are in no ranking."""
        self._asked_latest = Ranking()
        """The same, by edge, the greatest first."""
        self._awaited = Ranking()
        """Those of them that others wait for, by edge."""
        self._may_go = Ranking()
        """With frames here, the one to let go of first; not while it is being fetched."""
        self._fetches = 0
        self._frames = 0
        self._frames_bytes = 0
        self._asked_bytes = 0
        self._unfinished = 0
        """Reads of which not everything is here."""
        self._share_bytes = fetch_bytes

    @property
    def held_bytes(self) -> int:
        """What is here, and what is on its way, as far as one can tell."""
        return self._frames_bytes + self._asked_bytes

    @property
    def edge(self) -> int:
        """The least adjusted clock that is not here and is waited for."""
        return min(self._awaited.least, self._wanting.least)

    @property
    def share_bytes(self) -> int:
        """What may be asked for at once of one journal."""
        return self._share_bytes

    @property
    def is_idle(self) -> bool:
        """Nothing is here, and there is nothing to be fetched."""
        return not (self._frames or self._unfinished)

    @property
    def late_at(self) -> int:
        """When something that is on its way is waited for no more; infinite if there is none."""
        return self._asked.least

    # -- what happens to reads -------------------------------------------------------------

    def grown(self, read: Read) -> None:
        """Its head has moved."""
        self._count(read)
        self.want(read)

    def want(self, read: Read) -> None:
        """Fetch more of the read, if there is more and little of it is here."""
        if (
            read.offset < read.head
            and (read.frames_bytes < self._share_bytes or len(read.frames) < _FRAMES_MIN)
            and not (read.fetch or read.stopped or read in self._wanting)
            and not read.is_parked
        ):
            self._wanting.put(read, read.edge)

    def parked(self, read: Read) -> None:
        """Its next frame is not wanted for a while."""
        self._wanting.drop(read)
        self._rank(read)

    def opened(self, read: Read) -> None:
        """Its next frame is due."""
        self._rank(read)
        self.want(read)

    def take(self, read: Read) -> Frame:
        _, frame = read.frames.popleft()
        self._gone(read, frame)
        if not read.frames:
            self._may_go.drop(read)
        return frame

    def stop(self, read: Read) -> None:
        while read.frames:
            self.take(read)
        self._end(read)
        self._wanting.drop(read)
        self._count(read)

    def arrived(self, read: Read, frames: Sequence[Frame], through: Offset) -> None:
        """What was asked for."""
        self._end(read)
        for frame in frames:
            # An ACK of clock 0 rolls back what precedes it: it is due when that is.
            read.edge = max(read.edge, read.source.adjusted(frame.clock))
            read.frames.append(Waiting(read.edge, frame))
            read.frames_bytes += frame.bytes
            read.frame_bytes = max(read.frame_bytes, frame.bytes)
            self._frames_bytes += frame.bytes
        self._frames += len(frames)
        read.offset = frames[-1].end if frames else through
        read.behind = read.offset < read.head
        self._count(read)
        self._rank(read)
        # Frames may be larger than they were thought to be.
        while self.held_bytes > self._ahead_bytes and self._frames > 1:
            if not self._let_go_beyond(self._latest_asked):
                break

    # -- asking ----------------------------------------------------------------------------

    def ask(self, now: Clock, first: int) -> list[Read]:
        """The reads to fetch, each from its `offset` on, as much as fits its share.

        `first` is the adjusted clock of the first frame here, infinite if there is none.
        """
        while self._asked.least <= now and (late := self._asked.first):
            self._forget(late)
            self._rank(late)
        asked = []
        while (read := self._wanting.first) is not None:
            # The last frame may reach beyond what is asked for, by its size if that is known.
            size = self._share_bytes + (read.frame_bytes or self._fetch_bytes)
            size = min(size, self._at_most_bytes(read.offset, read.head))
            if not self._make_room(size, read.edge, first):
                break
            self._wanting.drop(read)
            self._fetches += 1
            read.fetch = self._fetches
            read.asked_bytes = size
            self._asked_bytes += size
            self._asked.put(read, now + self._patience)
            self._asked_latest.put(read, -read.edge)
            if read.behind:
                self._awaited.put(read, read.edge)
            self._rank(read)
            asked.append(read)
        return asked

    def _make_room(self, size: int, edge: int, first: int) -> bool:
        # What is here of about the same time as what is on its way would be wanted again at once.
        # But if everything waits for this read, anything that comes after it must go.
        is_next = edge < first and edge <= self._awaited.least
        beyond = edge if is_next else max(edge, self._latest_asked)
        while self.held_bytes + size > self._ahead_bytes:
            if not self._let_go_beyond(beyond):
                return not self._frames and not self._asked
        return True

    @property
    def _latest_asked(self) -> int:
        return -self._asked_latest.least if self._asked_latest else 0

    # -- letting go ------------------------------------------------------------------------

    def _rank(self, read: Read) -> None:
        """What may go of the read has changed."""
        if read.frames and read not in self._asked:
            parked = _PARKED if read.is_parked else 0
            self._may_go.put(read, -read.frames[-1].at - parked)
        else:
            self._may_go.drop(read)

    def _let_go_beyond(self, edge: int) -> bool:
        """Of the frame to let go of first, if it is gated or beyond the edge.

        Nothing but its clock is kept.
        """
        read = self._may_go.first
        if read is None or not (read.is_parked or read.frames[-1].at > edge):
            return False
        at, frame = read.frames.pop()
        self._gone(read, frame)
        # What is late would follow what is gone.
        self._end(read)
        read.offset, read.edge, read.behind = frame.offset, at, True
        if not read.frames and read.phase is Phase.QUEUED:
            read.phase = Phase.PENDING
        self._rank(read)
        self._wanting.drop(read)
        self._count(read)
        self.want(read)
        return True

    # -- counting --------------------------------------------------------------------------

    def _gone(self, read: Read, frame: Frame) -> None:
        read.frames_bytes -= frame.bytes
        self._frames_bytes -= frame.bytes
        self._frames -= 1

    def _end(self, read: Read) -> None:
        """The read's fetch is answered, or not wanted any more."""
        self._forget(read)
        self._asked_bytes -= read.asked_bytes
        read.fetch = read.asked_bytes = 0

    def _forget(self, read: Read) -> None:
        for asked in (self._asked, self._asked_latest, self._awaited):
            asked.drop(read)

    def _count(self, read: Read) -> None:
        unfinished = read.offset < read.head and not read.stopped
        if unfinished != read.unfinished:
            read.unfinished = unfinished
            self._unfinished += 1 if unfinished else -1
            fair = self._ahead_bytes // (_SHARES * max(1, self._unfinished))
            least = max(1, self._fetch_bytes // _SHARE_MIN)
            self._share_bytes = max(least, min(self._fetch_bytes, fair))
