"""A member's Queue: what to write next, when to acknowledge, when to let Slices send more.

**Order.** Every Slice sends blocks, and announces a bound for each lane: it has nothing due below.
A bound is never below anything the Slice has sent; it is infinite if the Slice has nothing due. The
Queue writes the waiting block of the least (lane, low) once no other Slice can still send one that
comes before it. So the file follows lanes and clocks across Slices, and no two Slices wait for each
other: within a lane, if S waits for T's bound, what T sent lies below that bound and does not wait
for S; and a lane never waits for the lanes after it, since each has its own order and credit.

**Flushes.** The Queue answers a Flush once nothing waits here that the Slice sent of its lane
before, and everything written is durable. It asks for a sync only if no earlier one covers that.

**Credit.** A Slice may have a number of bytes of each lane here that are not written yet. The Queue
gives credit back as it writes. Control messages need no credit.

**Limits.** What counts is what `FileSpace` calls needed. At the soft limit the Queue keeps credit
back, unless the consumer is starving: the ACK that it waits for may be just ahead. Whatever comes
with that credit is flushed before the Queue gives more. Above the hard limit the Queue fails.

**Copying.** Open blocks at the front of the file keep what is behind them on disk, needed or not.
The Queue copies these to the end, a portion at a time, once that gives back enough. Meanwhile, if
the disk holds as much as the hard limit, the Queue gives no credit, so that the file cannot grow
faster than the copying gives back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import REPORT, ProtocolError
from headrace.settings import MIB
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.pinned_bytes import PinnedBytes, full_error, soft_limit_reason
from headrace.shuffle.queue.space import FileSpace

_COPY_BYTES = 8 * MIB
_COPY_SHARE = 16
"""The Queue copies up to `_COPY_BYTES` at once, and up to this share of the hard limit."""

_LITTLE_SHARE = 8
"""Unneeded bytes below this share of the soft limit are not worth copying anything."""
_MUCH_SHARE = 4
"""Unneeded bytes above this share of the hard limit always are."""


class WriteBlock(NamedTuple):
    slice: int
    head: BlockHead
    body: object


class WriteRetraction(NamedTuple):
    """Write rollbacks, so that no reader shows what they retract.

    Commits are not written: a checkpoint has them.
    """

    retracted: tuple[SpanEnd, ...]


class WriteStop(NamedTuple):
    """Write that nobody reads these places any more; have the file scanned once that is durable."""

    places: tuple[int, ...]
    checkpoint: int
    """The last checkpoint that may show anything of them."""


class Sync(NamedTuple):
    """Call `synced` with this number once everything written before is durable."""

    number: int


class SendGrant(NamedTuple):
    """Give a Slice credit back."""

    slice: int
    lane: int
    bytes: int


class SendFlushed(NamedTuple):
    slice: int
    number: int


class CopyBlocks(NamedTuple):
    """Copy blocks to the end; call `copies_written`, and `copies_durable` once they are."""

    locations: dict[int, int]
    """Where the blocks are, by position."""


class GiveBack(NamedTuple):
    """Nobody needs what lies below this position of the file."""

    below: int


Effect = (
    WriteBlock
    | WriteRetraction
    | WriteStop
    | Sync
    | SendGrant
    | SendFlushed
    | CopyBlocks
    | GiveBack
)


class _Acks(NamedTuple):
    ends: tuple[SpanEnd, ...]


_Item = WriteBlock | _Acks | WriteStop
"""What waits to be written."""


@dataclass(slots=True, eq=False)
class _Stream:
    """What one Slice has sent."""

    slice: int
    bounds: list[int]
    lanes: list[deque[tuple[int, _Item]]]
    """By lane: items that wait, each with the number of its arrival."""
    owed_bytes: list[int]
    """By lane: credit for blocks that are written, which the Queue has not given back yet."""
    flushes: list[deque[tuple[int, int]]]
    """By lane: the numbers of their arrivals and the numbers of Flushes that wait."""
    arrivals: int = 0

    def put(self, lane: int, item: _Item) -> None:
        self.arrivals += 1
        self.lanes[lane].append((self.arrivals, item))

    def put_flush(self, lane: int, number: int) -> None:
        self.arrivals += 1
        self.flushes[lane].append((self.arrivals, number))

    def take_flushes(self) -> Iterator[int]:
        """Yields the Flushes before which nothing of their lane waits any more."""
        for flushes, waiting in zip(self.flushes, self.lanes, strict=True):
            oldest = waiting[0][0] if waiting else self.arrivals + 1
            while flushes and flushes[0][0] < oldest:
                yield flushes.popleft()[1]

    def may_precede(self, lane: int, low: int) -> bool:
        """True if the Slice may still send a block that comes before this lane and low."""
        if any(bound < INFINITE for bound in self.bounds[:lane]):
            return True
        # What waits here of the lane does not come before it, nor does what follows that.
        return not self.lanes[lane] and self.bounds[lane] < low


class QueueState:
    def __init__(self, slices: int, lanes: int, soft_bytes: int, hard_bytes: int) -> None:
        self.space = FileSpace()
        """What is on disk. Readers change it; then `space_changed` decides what follows."""
        self._streams = [
            _Stream(
                slice,
                [0] * lanes,
                [deque() for _ in range(lanes)],
                [0] * lanes,
                [deque() for _ in range(lanes)],
            )
            for slice in range(slices)
        ]
        self._lanes = lanes
        self._soft_bytes = soft_bytes
        self._hard_bytes = hard_bytes
        self._syncs = 0
        """The number of the next Sync."""
        self._has_unsynced = False
        """True if something was written that no Sync covers yet."""
        self._flushes: dict[int, list[SendFlushed]] = {}
        """What to answer, by the Sync that it waits for."""
        self._starving = False
        self._checkpoint = 0
        """The last checkpoint that the Session has made, as far as this Queue was told."""
        self._pinned = PinnedBytes()
        self._is_copying = False
        self._given_back = 0

    def append(self, slice: int, head: BlockHead, body: object) -> list[Effect]:
        self._stream(slice, head.lane).put(head.lane, WriteBlock(slice, head, body))
        return self._advance()

    def end(self, slice: int, lane: int, ends: Sequence[SpanEnd]) -> list[Effect]:
        self._stream(slice, lane).put(lane, _Acks(tuple(ends)))
        return self._advance()

    def stop(self, slice: int, lane: int, places: Sequence[int], checkpoint: int) -> list[Effect]:
        self._stream(slice, lane).put(lane, WriteStop(tuple(places), checkpoint))
        return self._advance()

    def bound(self, slice: int, bounds: Sequence[int]) -> list[Effect]:
        if len(bounds) != self._lanes:
            raise ProtocolError(
                f"Slice {slice} sent bounds of {len(bounds)} lanes, not {self._lanes}", do=REPORT
            )
        self._streams[slice].bounds = list(bounds)
        return self._advance()

    def flush(self, slice: int, lane: int, number: int) -> list[Effect]:
        self._stream(slice, lane).put_flush(lane, number)
        return self._advance()

    def _stream(self, slice: int, lane: int) -> _Stream:
        """Return what the Slice has sent. Raises ProtocolError if it has no such lane."""
        if not 0 <= lane < self._lanes:
            raise ProtocolError(f"Slice {slice} sent lane {lane} of {self._lanes}", do=REPORT)
        return self._streams[slice]

    def synced(self, number: int) -> list[Effect]:
        return [*self._flushes.pop(number), *self._grants()]

    def starve(self, starving: bool, checkpoint: int) -> list[Effect]:
        """The consumer waits for a checkpoint after this one, or waits no more."""
        self._starving = starving
        self._checkpoint = max(self._checkpoint, checkpoint)
        return self._grants()

    def space_changed(self) -> list[Effect]:
        """Call this whenever a reader has changed `space`."""
        effects: list[Effect] = []
        if (below := self.space.kept_from) > self._given_back:
            self._given_back = below
            effects.append(GiveBack(below))
        return effects + self._copies() + self._grants()

    def copies_written(self, locations: Mapping[int, int]) -> None:
        """The copies of these blocks begin at these locations."""
        self.space.copies_written(locations)

    def copies_durable(self) -> list[Effect]:
        self._is_copying = False
        self.space.copies_durable()
        return self.space_changed()

    def reason(self) -> str:
        """Why the Queue keeps credit back, or nothing."""
        if not self._is_over_soft_limit:
            return ""
        return soft_limit_reason(self._soft_bytes, self.space, self._pinned, self._checkpoint)

    # -- deciding --------------------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        effects: list[Effect] = []
        while (waiting := self._next()) is not None:
            _, item = waiting.popleft()
            if isinstance(item, WriteBlock):
                effects.append(item)
                self._wrote(item)
            elif isinstance(item, WriteStop):
                effects.append(item)
                self._pinned.unpin_places(item.places)
            else:
                effects += self._ended(item)
        self._has_unsynced = self._has_unsynced or bool(effects)
        answers = [
            SendFlushed(stream.slice, number)
            for stream in self._streams
            for number in stream.take_flushes()
        ]
        if answers:
            effects += self._flush(answers)
        return effects + self._copies() + self._grants()

    def _flush(self, answers: list[SendFlushed]) -> Sequence[Effect]:
        """Answer these Flushes once everything that was written is durable."""
        if self._has_unsynced:
            self._has_unsynced = False
            self._flushes[self._syncs] = answers
            self._syncs += 1
            return [Sync(self._syncs - 1)]
        if under_way := self._flushes.get(self._syncs - 1):
            under_way += answers
            return []
        return answers

    def _next(self) -> deque[tuple[int, _Item]] | None:
        """The line whose first item may be written now."""
        for lane in range(self._lanes):
            best: tuple[int, _Stream] | None = None
            for stream in self._streams:
                if not (waiting := stream.lanes[lane]):
                    continue
                _, item = waiting[0]
                if not isinstance(item, WriteBlock):
                    return waiting
                if best is None or item.head.low < best[0]:
                    best = item.head.low, stream
            if best and not any(
                stream is not best[1] and stream.may_precede(lane, best[0])
                for stream in self._streams
            ):
                return best[1].lanes[lane]
        return None

    def _ended(self, acks: _Acks) -> list[Effect]:
        for end in acks.ends:
            self._pinned.unpin(end.place, end.producer)
        retracted = tuple(end for end in acks.ends if not end.committed)
        return [WriteRetraction(retracted)] if retracted else []

    def _wrote(self, block: WriteBlock) -> None:
        size = block_bytes(block.head, block.body)
        self._streams[block.slice].owed_bytes[block.head.lane] += size
        self.space.wrote(size)
        self._pinned.pin(block.head, size)
        if self.space.needed_bytes > self._hard_bytes:
            raise full_error(self._hard_bytes, self.space, self._pinned, self._checkpoint)

    def _copies(self) -> list[Effect]:
        """Copies, once that gives back more than it costs, or if the disk is full."""
        if self._is_copying:
            return []
        unneeded = self.space.unneeded_bytes
        little = max(self.space.open_bytes, self._soft_bytes // _LITTLE_SHARE)
        is_worth_it = unneeded > min(little, self._hard_bytes // _MUCH_SHARE)
        if not (is_worth_it or (unneeded and self._is_over_hard_limit)):
            return []
        self._is_copying = True
        bytes_max = min(_COPY_BYTES, self._hard_bytes // _COPY_SHARE)
        return [CopyBlocks(self.space.start_copies(bytes_max))]

    def _grants(self) -> list[Effect]:
        if self._keeps_credit:
            return []
        effects: list[Effect] = []
        for stream in self._streams:
            for lane, size in enumerate(stream.owed_bytes):
                if size:
                    effects.append(SendGrant(stream.slice, lane, size))
                    stream.owed_bytes[lane] = 0
        return effects

    @property
    def _keeps_credit(self) -> bool:
        # A starving consumer may be waiting for what is being flushed.
        if self._is_over_soft_limit and (not self._is_starving or self._flushes):
            return True
        return self._is_copying and self._is_over_hard_limit

    @property
    def _is_over_soft_limit(self) -> bool:
        return self.space.needed_bytes >= self._soft_bytes

    @property
    def _is_over_hard_limit(self) -> bool:
        """True if the disk holds that much, needed or not."""
        return self.space.held_bytes >= self._hard_bytes

    @property
    def _is_starving(self) -> bool:
        """True if the consumer waits and has nothing to release.

        The last checkpoint does not count: some consumers keep it until they have the next.
        """
        return self._starving and self.space.last_released >= self._checkpoint - 1

    # -- checking --------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises AssertionError if the state contradicts the docstring of this module."""
        self.space.validate()
        self._pinned.validate()
        assert self._next() is None, "an item waits that may be written"
        for stream in self._streams:
            assert len(stream.bounds) == len(stream.lanes) == self._lanes
            assert all(0 <= bound <= INFINITE for bound in stream.bounds)
            for waiting, flushes in zip(stream.lanes, stream.flushes, strict=True):
                arrivals = [arrival for arrival, _ in waiting]
                assert arrivals == sorted(arrivals), "each lane is first come, first served"
                first = arrivals[0] if arrivals else INFINITE
                assert all(arrival > first for arrival, _ in flushes), "a Flush waits for nothing"
        owed_bytes = [size for stream in self._streams for size in stream.owed_bytes]
        assert min(owed_bytes) >= 0
        assert sum(owed_bytes) <= self.space.written_bytes
        assert self._keeps_credit or not any(owed_bytes), "the Queue keeps credit for no reason"
        assert all(number < self._syncs for number in self._flushes), "no Sync is under way"
        assert self._is_copying or not self.space.is_copying, "nobody copies what is to be copied"
        assert self._given_back == self.space.kept_from, "the Queue keeps what nobody needs"
