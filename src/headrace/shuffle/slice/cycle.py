"""A cycle: the frames that a Slice takes at once, as blocks and ACKs for the Queues. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from headrace.clock import Clock
from headrace.errors import ProtocolError
from headrace.ids import format_producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags, FrameOutcome, Step, sequence
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source
from headrace.shuffle.block import BlockMaker, Piece, Routed, RoutedPieces, SpanEnd
from headrace.shuffle.slice.effects import SendEnds
from headrace.shuffle.slice.journal_read import Read, ReadProducer
from headrace.shuffle.slice.lane_progress import LaneProgress

Decode = Callable[[Frame, Source], pa.RecordBatch]
"""Returns the documents of a frame under the schema of a source."""

_ENDS_SPAN = (FrameOutcome.COMMIT, FrameOutcome.EMPTY, FrameOutcome.ROLLBACK)


class Cycle:
    """What is taken goes to members a portion at a time, and into blocks at the end.

    So blocks are large even if they go to many members, and no member gets more than its Queue has
    credit for, and one portion: the Slice looks at `unsent_bytes` after each.
    """

    def __init__(
        self, decode: Decode, makers: Mapping[int, BlockMaker], lanes: int, members: int
    ) -> None:
        self.frames = 0
        self.documents = 0
        self.bytes = 0
        self.portion_documents = 0
        self.portion_bytes = 0
        """What was taken and not routed yet."""
        self.unsent_bytes = [[0] * members for _ in range(lanes)]
        """By lane and member, about what was routed."""
        self._decode = decode
        self._makers = makers
        self._pieces: dict[int, list[Piece]] = {}
        """By the tag of their binding: documents that are not routed yet."""
        self._routed: dict[int, list[RoutedPieces]] = {}
        """By the tag of their binding."""
        self._ends: list[tuple[int, ReadProducer, SpanEnd]] = []
        """The ACKs that were taken, each with its lane and its producer."""

    def take(self, read: Read, frame: Frame, progress: LaneProgress) -> None:
        """Sequence a frame, keep its new documents, and note the progress that it makes."""
        self.frames += 1
        self.documents += frame.documents
        self.bytes += frame.bytes
        self.portion_documents += frame.documents
        self.portion_bytes += frame.bytes
        producer = read.producer(frame.producer)
        before = producer.sequence
        try:
            step = sequence(before, frame.flags, frame.clock, frame.documents, frame.offset)
        except ProtocolError as error:
            who = format_producer(frame.producer)
            raise ProtocolError(
                f"{read.name}, producer {who}: {error.what}", do=error.do
            ) from error
        producer.sequence = step.after
        if step.outcome is FrameOutcome.DUPLICATE:
            progress.passed_over(read.place)
        else:
            if frame.flags is not Flags.ACK:
                self._keep(read, frame, producer, step.skip)
            progress.stepped(read.place, frame.producer, step.after, frame.end)
            if step.outcome in _ENDS_SPAN:
                self._end(read, frame, producer, before, step, progress)
        read.taken = frame.end
        progress.took(read.place, frame.end, is_last=not read.has_more)

    def _keep(self, read: Read, frame: Frame, producer: ReadProducer, skip: int) -> None:
        clock = Clock(frame.clock + skip)
        producer.pending += read.source.documents_shown(clock, frame.documents - skip)
        batch = self._decode(frame, read.source).slice(skip)
        self._pieces.setdefault(read.source.tag, []).append(
            Piece(read.place, frame.producer, clock, batch)
        )

    def _end(
        self,
        read: Read,
        frame: Frame,
        producer: ReadProducer,
        before: Sequenced,
        step: Step,
        progress: LaneProgress,
    ) -> None:
        is_commit = step.outcome is not FrameOutcome.ROLLBACK
        last_commit, last_continue = step.after.last_commit, step.after.last_continue
        if before.begin is None:
            # Documents outside of a span commit themselves. An ACK of nothing begins with itself.
            begin, first = frame.offset, Clock(frame.clock + step.skip)
        else:
            begin, first = before.begin, before.first
        last = max(last_continue, last_commit) if is_commit else last_continue
        end = SpanEnd(read.place, frame.producer, first, last, is_commit, last_commit)
        self._ends.append((read.source.lane, producer, end))
        if is_commit:
            progress.committed(read.source, end, begin, producer.pending, frame)
        else:
            progress.rolled_back()
        producer.pending = 0

    def route(self) -> None:
        """Find out who gets the documents that were taken since the last call."""
        for tag, pieces in self._pieces.items():
            routed = self._makers[tag].route(pieces)
            self._routed.setdefault(tag, []).append(routed)
            unsent_bytes = self.unsent_bytes[self._makers[tag].lane]
            for member, size in enumerate(routed.bytes_by_member()):
                unsent_bytes[member] += size
        self._pieces = {}
        self.portion_documents = self.portion_bytes = 0

    def blocks(self, documents_max: int) -> list[Routed]:
        """Return the blocks of up to `documents_max`, in the order in which to send them.

        A member's blocks of a binding keep their order, whatever their clocks. Apart from that they
        are in the order of lanes and clocks.
        """
        self.route()
        ordered: list[tuple[int, Routed]] = []
        for tag, routed in self._routed.items():
            lows: dict[int, int] = {}
            for block in self._makers[tag].make(routed, documents_max):
                low = max(lows.get(block.member, 0), block.head.low)
                lows[block.member] = low
                ordered.append((low, block))
        ordered.sort(key=lambda entry: (entry[1].head.lane, entry[0]))
        return [block for _, block in ordered]

    def ends(self, members: int) -> list[SendEnds]:
        """Send ACKs to the Queues that got documents of their spans. Call it after the blocks."""
        queues: dict[tuple[int, int], list[SpanEnd]] = {}
        for lane, producer, end in self._ends:
            for member in range(members):
                if producer.extent >> member & 1:
                    queues.setdefault((member, lane), []).append(end)
        for _, producer, _ in self._ends:
            if not producer.is_open:
                producer.extent = 0
        return [SendEnds(member, lane, tuple(ends)) for (member, lane), ends in queues.items()]
