"""A member's Slice: which journals to read on, what to send to which Queue, what to report.

A read is one journal under one binding. It is
- pending  while it has no frames here: there are none, or they are being fetched;
- gated    while its next frame is not due, because of its read delay;
- queued   while its next frame waits for its turn: lanes in order, then adjusted clocks;
- active   while its frames are being taken;
- held     while it is ahead, and other journals catch up.

Frames are taken in cycles. A cycle takes due frames in order, as many as fit, sequences each, and
sends what they hold: blocks, then the ACKs that ended spans, then new bounds. After anything that
commits or rolls back, and after a run of duplicates, a Flush of the lane follows, one at a time;
when every Queue has answered it, what was taken of the lane before it is reported.

While a backlog's next part is being fetched, frames above what was taken of it wait, so that the
order holds; but only for `patience`, so that a journal that stalls holds up nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.clock import COUNTER_BITS, TICKS_PER_SECOND, Clock
from headrace.errors import REPORT, OutdatedError, ProtocolError
from headrace.ids import JournalId, Offset, format_producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags, FrameOutcome, sequence
from headrace.settings import ShuffleSettings
from headrace.shuffle.binding import INFINITE, Source, Sources
from headrace.shuffle.block import BlockMaker, Piece, Routed, SpanEnd, block_bytes
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.routing import Range, Router
from headrace.shuffle.slice.causal_hints import CausalHints
from headrace.shuffle.slice.effects import (
    Effect,
    Fetch,
    Finish,
    Report,
    SendBlock,
    SendBounds,
    SendEnds,
    SendFlush,
    SendStarving,
    SendStop,
)
from headrace.shuffle.slice.flushing import Flushing
from headrace.shuffle.slice.lane import Lane
from headrace.shuffle.slice.progress import Progress
from headrace.shuffle.slice.read import Producing, Read
from headrace.shuffle.slice.read_ahead import AtMostBytes, ReadAhead

Decode = Callable[[Frame, Source], pa.RecordBatch]
"""The documents of a frame under the schema of a source."""


class Limits(NamedTuple):
    """How much a Slice takes on at once."""

    credit_bytes: int = 4 << 20
    """Sent to one Queue and not yet written there."""
    fetch_bytes: int = 1 << 20
    """Asked for at once of one journal."""
    ahead_bytes: int = 32 << 20
    """Of one lane: fetched and not yet taken."""
    block_documents: int = 16_384
    cycle_documents: int = 65_536
    cycle_bytes: int = 4 << 20
    report_documents: int = 1 << 62
    """Of a lane: as many that are committed wait for their report before more is taken."""
    patience: int = TICKS_PER_SECOND << COUNTER_BITS
    """In clock units."""


_CREDIT_SHARE = 4
"""A Slice may have twice its credit at a Queue, and the frame that exceeds it: a cycle begins while
some is left, and takes as much again. Documents take more room in blocks than in frames."""


def credit_that_fits(settings: ShuffleSettings, slices: int, lanes: int) -> int:
    """The credit with which all that Slices may still send to a Queue that has reached its soft
    limit stays below the hard one. With the least a frame is sent at a time, however large.
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
        self._limits = limits
        self._decode = decode
        self._makers = {source.tag: BlockMaker(source, router) for source in sources.all}
        self._lanes = [
            Lane(
                number,
                ReadAhead(limits.fetch_bytes, limits.ahead_bytes, limits.patience, at_most_bytes),
            )
            for number in range(sources.lanes)
        ]
        self.reads: dict[int, Read] = {}
        self._has_started = False
        """The Session has said what to read. Before that the Slice announces no bounds."""
        self._reads_cut = False
        self._has_finished = False
        self._members = len(ranges)
        self._outstanding = [[0] * len(ranges) for _ in range(sources.lanes)]
        self._sent_low = [0] * sources.lanes
        self._announced: tuple[int, ...] = ()
        self._hinting = CausalHints(sources)
        self._progress = [Progress(self._hinting) for _ in range(sources.lanes)]
        self._flushing = Flushing(len(ranges))
        self._held_lanes: frozenset[int] = frozenset()
        self._behind: dict[int, frozenset[int]] = {}

    # -- what happens ----------------------------------------------------------------------

    def start(self, starts: Iterable[ReadStart], *, is_cut: bool = False) -> None:
        """Read these as well. Of a cut nothing else is started, stopped or grows."""
        self._has_started = True
        self._reads_cut = is_cut
        for start in starts:
            read = Read(start, self._sources.by_tag[start.binding])  # type: ignore[index]
            self.reads[start.place] = read
            self._progress[read.source.lane].started(read.place, read.journal)
            self._lane(read).start(read)

    def stop(self, places: Iterable[int], checkpoint: int) -> list[Effect]:
        """Read these no more; checkpoints after this one show nothing of them."""
        stopped: dict[int, list[int]] = {}
        for place in places:
            stopped.setdefault(self._sources.of_place(place).lane, []).append(place)
            if read := self.reads.pop(place, None):
                self._lane(read).stop(read)
                self._progress[read.source.lane].stopped(place, read.journal)
        return [SendStop(lane, tuple(places), checkpoint) for lane, places in stopped.items()]

    def starve(self, starving: bool, checkpoint: int) -> list[Effect]:
        """The consumer asks for more than the checkpoints up to this one, or does not."""
        return [SendStarving(starving, checkpoint)]

    def head(self, place: int, head: Offset) -> None:
        """The journal has grown."""
        if (read := self.reads.get(place)) and head > read.head:
            self._lane(read).grow(read, head)

    def fetched(self, number: int, place: int, frames: Sequence[Frame], through: Offset) -> None:
        """What a Fetch asked for; there may be nothing in it."""
        read = self.reads.get(place)
        if read is not None and read.fetch == number:
            self._lane(read).fetched(read, frames, through)

    def journal_deleted(self, place: int) -> None:
        """A Fetch found no journal. The Session stops the read, but the one of a cut cannot."""
        if self._reads_cut:
            raise OutdatedError(f"place {place} was deleted after the cut", do="take another cut")

    def granted(self, member: int, lane: int, size: int) -> None:
        if not 0 <= lane < len(self._lanes):
            raise ProtocolError(
                f"the Queue of member {member} gave credit for the unknown lane {lane}",
                do=REPORT,
            )
        self._outstanding[lane][member] -= size

    def flushed(self, member: int, number: int) -> list[Effect]:
        delta = self._flushing.answered(member, number)
        return [Report(delta), *self._flush()] if delta else []

    def hold(self, lanes: Iterable[int], behind: Mapping[int, Iterable[int]] | None = None) -> None:
        """Take no more of these lanes for now: enough of them waits at the Session.

        `behind` are lanes of which only these places go on, until others have caught up.
        """
        self._held_lanes = frozenset(lanes)
        before, self._behind = (
            self._behind,
            {lane: frozenset(places) for lane, places in (behind or {}).items()},
        )
        for lane in self._lanes:
            places = self._behind.get(lane.number)
            if places != before.get(lane.number):
                lane.hold((r for r in self.reads.values() if self._lane(r) is lane), places)

    def unknown_journals(self, frames: Iterable[Frame]) -> set[int]:
        """Hinted journals of which it must be `learned` what reads them, before `fetched`."""
        return self._hinting.unknown_journals(frames)

    def learned(self, journal: JournalId, tags: Iterable[int]) -> None:
        """These bindings read the journal; none if it is no source of the task."""
        self._hinting.learned(journal, tags)

    def named(self, journal: JournalId, name: str | None) -> None:
        """The name of one of `unknown_journals`; None if it was deleted. It says who reads it."""
        found = self._sources.of_journal(name) if name else []
        self._hinting.learned(journal, [source.tag for source in found])

    def advance(self, now: Clock) -> list[Effect]:
        """Do what can be done. Call it after anything happened, and at `wake_at`."""
        effects: list[Effect] = []
        if not self._has_started:
            return effects
        for lane in self._lanes:
            lane.open_gates(now)
        effects += self._fetches(now)
        while (cycle := self._cycle(now)) is not None:
            effects += cycle
            effects += self._fetches(now)
        effects += self._bounds(now)
        effects += self._flush()
        if self._reads_cut and not self._has_finished and self.is_settled:
            self._has_finished = True
            effects.append(Finish())
        return effects

    @property
    def is_settled(self) -> bool:
        """Everything it was told to read is taken, and reported where that ended anything."""
        if not self._has_started:
            return False
        flushed = not self._flushing and not any(lane.worth_a_flush for lane in self._progress)
        return flushed and all(lane.is_idle for lane in self._lanes)

    def wake_at(self) -> int | None:
        """When `advance` has something to do though nothing happens."""
        wake_at = min(lane.wake_at() for lane in self._lanes)
        return wake_at if wake_at < INFINITE else None

    # -- order -----------------------------------------------------------------------------

    def _lane(self, read: Read) -> Lane:
        return self._lanes[read.source.lane]

    def _fetches(self, now: Clock) -> list[Effect]:
        return [
            Fetch(read.fetch, read.place, read.journal, read.offset, read.head, lane.share_bytes)
            for lane in self._lanes
            for read in lane.ask(now)
        ]

    def _next(self, now: Clock) -> Lane | None:
        """The lane whose first frame comes next; None while something may come before it."""
        for lane in self._lanes:
            first, edge = lane.first(now), lane.edge()
            if first <= edge and first < INFINITE:
                return lane if self._may_take(lane.number) else None
            if edge < INFINITE:
                return None
        return None

    def _bounds(self, now: Clock) -> list[Effect]:
        announced = tuple(
            max(min(lane.first(now), lane.edge()), sent)
            for lane, sent in zip(self._lanes, self._sent_low, strict=True)
        )
        if announced == self._announced:
            return []
        self._announced = announced
        return [SendBounds(announced)]

    # -- taking ----------------------------------------------------------------------------

    def lacks_credit(self, now: Clock) -> bool:
        """A frame is due, and of some lane no more may be sent to some Queue."""
        is_due = any(lane.first(now) < INFINITE for lane in self._lanes)
        return is_due and not all(self._has_credit(lane.number) for lane in self._lanes)

    def _has_credit(self, lane: int) -> bool:
        return all(size < self._limits.credit_bytes for size in self._outstanding[lane])

    def _may_take(self, lane: int) -> bool:
        has_room = self._progress[lane].documents < self._limits.report_documents
        return has_room and lane not in self._held_lanes and self._has_credit(lane)

    def _cycle(self, now: Clock) -> list[Effect] | None:
        """What taking some frames comes to; None if there are none to take."""
        pieces: dict[int, list[Piece]] = {}
        ends: list[tuple[Producing, SpanEnd]] = []
        documents = size = frames = 0
        while documents < self._limits.cycle_documents and size < self._limits.cycle_bytes:
            if (lane := self._next(now)) is None:
                break
            read, frame = lane.take()
            self._take(read, frame, pieces, ends)
            read.taken = frame.end
            progress = self._progress[lane.number]
            progress.touched(read.place, frame.end)
            frames += 1
            documents += frame.documents
            size += frame.bytes
            lane.taken(read)
            if not read.has_more:
                progress.reached_head(read.place)
        return self._blocks(pieces) + self._ends(ends) if frames else None

    def _take(
        self,
        read: Read,
        frame: Frame,
        pieces: dict[int, list[Piece]],
        ends: list[tuple[Producing, SpanEnd]],
    ) -> None:
        progress = self._progress[read.source.lane]
        producing = read.producing(frame.producer)
        before = producing.sequence
        try:
            step = sequence(before, frame.flags, frame.clock, frame.documents, frame.offset)
        except ProtocolError as error:
            producer = format_producer(frame.producer)
            raise ProtocolError(
                f"{read.name}, producer {producer}: {error.what}", do=error.do
            ) from error
        producing.sequence = step.after
        if step.outcome is FrameOutcome.DUPLICATE:
            progress.passed_over(read.place)
            return
        if frame.flags is not Flags.ACK:
            clock = Clock(frame.clock + step.skip)
            if step.outcome is not FrameOutcome.EXTEND:
                producing.first = clock
            producing.pending += read.source.documents_shown(clock, frame.documents - step.skip)
            batch = self._decode(frame, read.source).slice(step.skip)
            pieces.setdefault(read.source.tag, []).append(
                Piece(read.place, frame.producer, clock, batch)
            )
        progress.stepped(read.place, frame.producer, step.after, frame.end)
        if step.outcome in (FrameOutcome.COMMIT, FrameOutcome.EMPTY, FrameOutcome.ROLLBACK):
            committed = step.outcome is not FrameOutcome.ROLLBACK
            last = Clock(max(step.after.last_continue, step.after.last_commit if committed else 0))
            ended = SpanEnd(
                read.place,
                frame.producer,
                producing.first,
                last,
                committed,
                step.after.last_commit,
            )
            ends.append((producing, ended))
            if committed:
                begin = frame.offset if before.begin is None else before.begin
                progress.committed(read.source, ended, begin, producing.pending, frame)
            else:
                progress.rolled_back()
            producing.pending = 0

    def _blocks(self, pieces: dict[int, list[Piece]]) -> list[Effect]:
        made: list[tuple[int, Routed]] = []
        for tag, some in pieces.items():
            lows = [0] * self._members
            for part in self._parts(some):
                for block in self._makers[tag].make(part):  # type: ignore[index]
                    # A member's blocks of a binding keep their order, whatever their clocks.
                    lows[block.member] = max(lows[block.member], block.head.low)
                    made.append((lows[block.member], block))
        made.sort(key=lambda each: (each[1].head.lane, each[0]))
        effects: list[Effect] = []
        for _, (member, head, body) in made:
            for place, producer, *_ in head.pair_rows().tolist():
                self.reads[place].producers[producer].extent |= 1 << member
            self._outstanding[head.lane][member] += block_bytes(head, body)
            self._sent_low[head.lane] = max(self._sent_low[head.lane], head.low)
            effects.append(SendBlock(member, head, body))
        return effects

    def _parts(self, pieces: list[Piece]) -> Iterable[list[Piece]]:
        """Pieces in runs of about a block each."""
        part: list[Piece] = []
        documents = 0
        for piece in pieces:
            if part and documents + piece.batch.num_rows > self._limits.block_documents:
                yield part
                part, documents = [], 0
            part.append(piece)
            documents += piece.batch.num_rows
        if part:
            yield part

    def _ends(self, ends: list[tuple[Producing, SpanEnd]]) -> list[Effect]:
        """To the Queues that got any of the producer's documents, and no others."""
        told: dict[tuple[int, int], list[SpanEnd]] = {}
        for producing, ended in ends:
            lane = self.reads[ended.place].source.lane
            for member in range(self._members):
                if producing.extent >> member & 1:
                    told.setdefault((member, lane), []).append(ended)
        for producing, _ in ends:
            if producing.sequence.begin is None:
                producing.extent = 0
        return [SendEnds(*where, tuple(some)) for where, some in told.items()]

    # -- flushing --------------------------------------------------------------------------

    def _flush(self) -> list[Effect]:
        effects: list[Effect] = []
        for lane, progress in enumerate(self._progress):
            if progress.worth_a_flush and not self._flushing.is_busy(lane):
                number = self._flushing.start(lane, progress.report(self.reads))
                effects.append(SendFlush(number, lane))
        return effects
