"""A member's Slice: which frames to fetch and take, what to send to which Queue, what to report.

A Slice reads journals under bindings: `journal_read` names the phases of a read. The reads of one
priority form a `lane`, which fetches ahead within its room (`read_ahead`) and knows whose frame
comes next. Lanes come in order, and frames of a lane in the order of their adjusted clocks.

The Slice takes frames in cycles (`cycle`). A cycle takes due frames in order, as many as fit,
sequences each, and sends what they hold: blocks, then the ACKs that ended spans, then new bounds.
It takes more if there are more members, so that the blocks for each of them are as large.
After anything that commits or rolls back, and after a run of duplicates, it sends a Flush of the
lane; when every Queue has answered, it reports what it took of the lane by then (`lane_progress`).

While a lane fetches the next frames of a backlog, later frames wait, so that the order holds. They
wait for `patience` only, so that a journal that stalls holds up nobody.

Between two events, as `validate` asserts:
- no read is active or stopped, and each is ranked where its phase says;
- a pending read with more in its journal is being fetched or wants to be;
- the frames that are here follow what was taken, in order, without a gap that nobody will fetch;
- the counts of frames and bytes are those of the reads;
- every bound that was announced is at least as great as the clocks of all blocks that were sent;
- no Queue gave back more credit than it got;
- what was committed is reported, or waits for a Flush;
- before the Session has said what to read, the Slice has announced nothing;
- once it has finished a cut, there is nothing left to take or to report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.clock import COUNTER_BITS, TICKS_PER_SECOND, Clock
from headrace.errors import REPORT, OutdatedError, ProtocolError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Frame
from headrace.settings import ShuffleSettings
from headrace.shuffle.binding import INFINITE, Sources
from headrace.shuffle.block import BlockMaker, block_bytes
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.routing import Range, Router
from headrace.shuffle.slice.causal_hints import CausalHints
from headrace.shuffle.slice.cycle import Cycle, Decode
from headrace.shuffle.slice.effects import (
    Effect,
    Fetch,
    Finish,
    Report,
    SendBlock,
    SendBounds,
    SendFlush,
    SendStarving,
    SendStop,
)
from headrace.shuffle.slice.journal_read import Read
from headrace.shuffle.slice.lane import Lane
from headrace.shuffle.slice.lane_progress import LaneProgress
from headrace.shuffle.slice.read_ahead import AtMostBytes

_CREDIT_SHARE = 4
"""A Slice may have twice its credit at a Queue, and the frame that exceeds it: a portion of a cycle
begins while some is left, and takes as much again. And documents are larger in blocks than in
frames."""


class Limits(NamedTuple):
    """How much a Slice takes on at once."""

    credit_bytes: int = 4 << 20
    """A Slice sends a Queue nothing more of a lane while this much of it is not written there."""
    fetch_bytes: int = 4 << 20
    """The most to fetch of one journal at once."""
    ahead_bytes: int = 32 << 20
    """The room of a lane for frames that are not taken yet."""
    block_documents: int = 16_384
    cycle_documents: int = 65_536
    """A cycle takes as much for each member, and looks whether there is credit after as much."""
    cycle_bytes: int = 4 << 20
    """The same, in bytes."""
    cycle_bytes_max: int = 16 << 20
    """No cycle begins another portion after this many bytes, however many members there are."""
    report_documents: int = 1 << 62
    """A lane takes nothing more while this many committed documents wait for their report."""
    patience: int = TICKS_PER_SECOND << COUNTER_BITS
    """In clock units."""

    @classmethod
    def of(cls, settings: ShuffleSettings, slices: int, lanes: int) -> Limits:
        """Return the limits of each of `slices` Slices."""
        credit_bytes = credit_that_fits(settings, slices, lanes)
        return cls(
            credit_bytes=credit_bytes,
            fetch_bytes=settings.fetch_bytes,
            ahead_bytes=settings.ahead_bytes,
            cycle_bytes=min(cls().cycle_bytes, credit_bytes),
            report_documents=max(1, settings.report_documents or cls().report_documents),
            patience=int(settings.patience_s * TICKS_PER_SECOND) << COUNTER_BITS,
        )


def credit_that_fits(settings: ShuffleSettings, slices: int, lanes: int) -> int:
    """Return a credit with which a Queue that reached its soft limit stays below the hard one.

    All Slices may still use up their credit then. With a credit of 1, a Slice sends one frame at a
    time, however large it is.
    """
    room_bytes = settings.queue_hard_bytes - settings.queue_soft_bytes
    share_bytes = room_bytes // (slices * lanes * _CREDIT_SHARE)
    return max(1, min(settings.credit_bytes, share_bytes))


class SliceState:
    def __init__(
        self,
        sources: Sources,
        ranges: Sequence[Range],
        decode: Decode,
        limits: Limits,
        at_most_bytes: AtMostBytes,
    ) -> None:
        router = Router(ranges)
        self._sources = sources
        self._members = len(ranges)
        self._limits = limits
        self._decode = decode
        self._makers: dict[int, BlockMaker] = {
            source.tag: BlockMaker(source, router) for source in sources.all
        }
        self._hints = CausalHints(sources)
        self._lanes = [
            Lane(
                number,
                len(ranges),
                LaneProgress(self._hints, len(ranges)),
                limits.fetch_bytes,
                limits.ahead_bytes,
                limits.patience,
                at_most_bytes,
            )
            for number in range(sources.lanes)
        ]
        self.reads: dict[int, Read] = {}
        """By place."""
        self._has_started = False
        """True once the Session has said what to read."""
        self._reads_cut = False
        self._has_finished = False
        self._bounds: tuple[int, ...] = ()
        """The bounds that were announced last, by lane."""
        self._flushes = 0
        """The number of Flushes so far."""

    # -- what the Session says -------------------------------------------------------------

    def start(self, starts: Iterable[ReadStart], *, is_cut: bool = False) -> None:
        """Read these places as well. If they are a cut, nothing else starts, stops or grows."""
        self._has_started = True
        self._reads_cut = is_cut
        for start in starts:
            read = Read(start, self._sources.of_place(start.place))
            self.reads[read.place] = read
            self._lane(read).start(read)

    def stop(self, places: Iterable[int], checkpoint: int) -> list[Effect]:
        """Stop reading these places. No checkpoint after this one shows documents of them."""
        stopped: dict[int, list[int]] = {}
        for place in places:
            stopped.setdefault(self._sources.of_place(place).lane, []).append(place)
            if read := self.reads.pop(place, None):
                self._lane(read).stop(read)
        return [SendStop(lane, tuple(places), checkpoint) for lane, places in stopped.items()]

    def head(self, place: int, head: Offset) -> None:
        """The journal has grown."""
        if (read := self.reads.get(place)) and head > read.head:
            self._lane(read).grow(read, head)

    def hold(self, lanes: Iterable[int], behind: Mapping[int, Iterable[int]] | None = None) -> None:
        """Take nothing of these lanes until another call: enough of them waits at the Session.

        `behind` names lanes, and in each the only places that go on while the others wait.
        """
        held, places = set(lanes), behind or {}
        for lane in self._lanes:
            lane.is_held = lane.number in held
            only = frozenset(places[lane.number]) if lane.number in places else None
            lane.hold((read for read in self.reads.values() if self._lane(read) is lane), only)

    def starve(self, starving: bool, checkpoint: int) -> list[Effect]:
        """The consumer wants more than the checkpoints up to this one, or it does not."""
        return [SendStarving(starving, checkpoint)]

    def learned(self, journal: JournalId, tags: Iterable[int]) -> None:
        """The bindings with these tags read the journal; none if it is no source of the task."""
        self._hints.learned(journal, tags)

    # -- what Queues and journals answer ---------------------------------------------------

    def granted(self, member: int, lane: int, size: int) -> None:
        """The Queue of a member wrote blocks of the lane, and gives their credit back."""
        if not 0 <= lane < len(self._lanes):
            raise ProtocolError(
                f"the Queue of member {member} gave credit for the unknown lane {lane}",
                do=REPORT,
            )
        self._lanes[lane].unwritten_bytes[member] -= size

    def flushed(self, member: int, number: int) -> list[Effect]:
        """The Queue of a member answered a Flush."""
        for lane in self._lanes:
            if lane.progress.awaits(member, number):
                delta = lane.progress.flushed(member)
                return [Report(delta), *self._flush()] if delta else []
        raise ProtocolError(
            f"the Queue of member {member} answered Flush {number}, which does not await it",
            do=REPORT,
        )

    def fetched(self, number: int, place: int, frames: Sequence[Frame], through: Offset) -> None:
        """A Fetch brought these frames; there may be none."""
        read = self.reads.get(place)
        if read is not None and read.fetch_number == number:
            self._lane(read).fetched(read, frames, through)

    def journal_deleted(self, place: int) -> None:
        """A Fetch found no journal. The Session will stop the read, unless it reads a cut."""
        if self._reads_cut:
            raise OutdatedError(
                f"the journal of place {place} was deleted after the cut", do="take another cut"
            )

    def unknown_journals(self, frames: Iterable[Frame]) -> set[int]:
        """Return the hinted journals that must be `named` before these frames are `fetched`."""
        return self._hints.unknown_journals(frames)

    def named(self, journal: JournalId, name: str | None) -> None:
        """The journal has this name, which decides who reads it; None if it was deleted."""
        found = self._sources.of_journal(name) if name else []
        self._hints.learned(journal, [source.tag for source in found])

    # -- what the Slice does ---------------------------------------------------------------

    def advance(self, now: Clock) -> list[Effect]:
        """Do what can be done. Call it after every event, and at `wake_at`."""
        effects: list[Effect] = []
        if not self._has_started:
            return effects
        for lane in self._lanes:
            lane.open_gates(now)
        effects += self._fetch(now)
        while (cycle := self._run_cycle(now)) is not None:
            effects += self._send(cycle)
            effects += self._fetch(now)
        effects += self._announce(now)
        effects += self._flush()
        if self._reads_cut and not self._has_finished and self.is_settled:
            self._has_finished = True
            effects.append(Finish())
        return effects

    @property
    def is_settled(self) -> bool:
        """True if the Slice has taken all that it knows of, and reported what that ended."""
        if not self._has_started:
            return False
        return all(lane.is_idle and lane.progress.is_settled for lane in self._lanes)

    def wake_at(self) -> int | None:
        """Return the time at which `advance` has something to do though nothing happens."""
        wake_at = min(lane.wake_at() for lane in self._lanes)
        return wake_at if wake_at < INFINITE else None

    def lacks_credit(self, now: Clock) -> bool:
        """True if a frame is due, and some lane may not send more to some Queue."""
        is_due = any(lane.first(now) < INFINITE for lane in self._lanes)
        no_more = [0] * self._members
        return is_due and not all(self._has_credit(lane, no_more) for lane in self._lanes)

    def _lane(self, read: Read) -> Lane:
        return self._lanes[read.source.lane]

    def _fetch(self, now: Clock) -> list[Effect]:
        return [
            Fetch(
                read.fetch_number,
                read.place,
                read.journal,
                read.offset,
                read.head,
                lane.read_ahead.share_bytes,
            )
            for lane in self._lanes
            for read in lane.fetch(now)
        ]

    def _next(self, now: Clock, cycle: Cycle) -> Lane | None:
        """Return the lane whose first frame comes next; None while another may precede it."""
        for lane in self._lanes:
            first, unfetched = lane.first(now), lane.unfetched_clock
            if first <= unfetched and first < INFINITE:
                return lane if self._may_take(lane, cycle) else None
            if unfetched < INFINITE:
                return None
        return None

    def _may_take(self, lane: Lane, cycle: Cycle) -> bool:
        has_room = lane.progress.documents < self._limits.report_documents
        has_credit = self._has_credit(lane, cycle.unsent_bytes[lane.number])
        return has_room and not lane.is_held and has_credit

    def _has_credit(self, lane: Lane, unsent_bytes: Sequence[int]) -> bool:
        return all(
            unwritten + unsent < self._limits.credit_bytes
            for unwritten, unsent in zip(lane.unwritten_bytes, unsent_bytes, strict=True)
        )

    def _run_cycle(self, now: Clock) -> Cycle | None:
        """Take the frames of a cycle; None if there are none to take."""
        limits, members = self._limits, self._members
        cycle = Cycle(self._decode, self._makers, len(self._lanes), members)
        documents_max = limits.cycle_documents * members
        bytes_max = min(limits.cycle_bytes * members, limits.cycle_bytes_max)
        while cycle.documents < documents_max and cycle.bytes < bytes_max:
            if (lane := self._next(now, cycle)) is None:
                break
            read, frame = lane.take()
            cycle.take(read, frame, lane.progress)
            lane.taken(read)
            if (
                cycle.portion_documents >= limits.cycle_documents
                or cycle.portion_bytes >= limits.cycle_bytes
            ):
                cycle.route()
        return cycle if cycle.frames else None

    def _send(self, cycle: Cycle) -> list[Effect]:
        effects: list[Effect] = []
        for member, head, body in cycle.blocks(self._limits.block_documents):
            for place, producer, *_ in head.pair_rows().tolist():
                self.reads[place].producers[producer].extent |= 1 << member
            lane = self._lanes[head.lane]
            lane.unwritten_bytes[member] += block_bytes(head, body)
            lane.sent_clock = max(lane.sent_clock, head.low)
            effects.append(SendBlock(member, head, body))
        effects += cycle.ends(self._members)
        return effects

    def _announce(self, now: Clock) -> list[Effect]:
        bounds = tuple(
            max(min(lane.first(now), lane.unfetched_clock), lane.sent_clock) for lane in self._lanes
        )
        if bounds == self._bounds:
            return []
        self._bounds = bounds
        return [SendBounds(bounds)]

    def _flush(self) -> list[Effect]:
        effects: list[Effect] = []
        for lane in self._lanes:
            if lane.progress.wants_flush:
                self._flushes += 1
                lane.progress.flush(self._flushes, self.reads)
                effects.append(SendFlush(self._flushes, lane.number))
        return effects

    def validate(self) -> None:
        """Assert the invariants that hold between two events."""
        by_lane: list[list[Read]] = [[] for _ in self._lanes]
        for place, read in self.reads.items():
            assert place == read.place, f"{read.name} is kept as place {place}"
            by_lane[read.source.lane].append(read)
        for lane, reads in zip(self._lanes, by_lane, strict=True):
            lane.validate(reads)
        if self._bounds:
            for bound, lane in zip(self._bounds, self._lanes, strict=True):
                assert bound >= lane.sent_clock, f"lane {lane.number}: its bound is too low"
        assert self._has_started or not (self.reads or self._bounds), "it has not started"
        assert not self._has_finished or self.is_settled, "it has finished too early"
