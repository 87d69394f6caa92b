"""A member's Queue: what to write next, when to acknowledge, when to let Slices send more.

Every Slice sends blocks, and announces for each lane a bound: it has nothing due below it. A
bound is never below anything the Slice has sent; without due documents it is infinite. Of the
blocks that wait, the one of the least (lane, low) is written, once no other Slice can still have
something before it. So writing follows lanes and clocks across Slices, and no two Slices wait for
each other: within a lane, if S waits for T's bound, what T sent lies below that bound and does not
wait for S; and a lane never waits for the lanes after it, since each has its own order and credit.

A Slice may have so many bytes of blocks of a lane here that are not written, and gets them back as
they are written. Control messages need no credit. At the soft limit of the disk nothing is given
back, unless the consumer starves, since an ACK may be just ahead; but whatever comes with it is
flushed first. At the hard limit it fails.

What is needed counts: documents of which a checkpoint is yet to be made, read or released. What is
not needed stays on disk behind open transactions, until these are moved to the end, a portion at a
time. It does not count; but while the disk holds more than the hard limit with it, no credit is
given back, so that it cannot outgrow what is being moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import QueueFullError, StorageError
from headrace.ids import Producer, format_producer
from headrace.settings import MIB
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.space import Account

_PORTION_BYTES = 8 * MIB
_PORTION_SHARE = 16
"""So much is moved at a time, and no more than this share of the hard limit."""

_LITTLE_SHARE = 8
"""Less than this share of the soft limit that is not needed is not worth moving anything."""
_MUCH_SHARE = 4
"""This share of the hard limit always is."""


class WriteBlock(NamedTuple):
    slice: int
    head: BlockHead
    body: object


class Retract(NamedTuple):
    """Write rollbacks: what they retract is never shown. (Commits are shown by checkpoints.)"""

    retracted: tuple[SpanEnd, ...]


class Stop(NamedTuple):
    """Write that places are not read any more: what the checkpoint of this number and those before
    do not show of them is never shown. Once that is durable, say what is needed."""

    places: tuple[int, ...]
    made: int


class Sync(NamedTuple):
    """Tell `synced` with this number once all that was written before is durable."""

    number: int


class Grant(NamedTuple):
    slice: int
    lane: int
    bytes: int


class Flushed(NamedTuple):
    slice: int
    number: int


class Move(NamedTuple):
    """Copy the first blocks to the end, say with `moving` how much that was, and when it is durable
    with `moved` what is needed then."""

    bytes_max: int


Effect = WriteBlock | Retract | Stop | Sync | Grant | Flushed | Move


class _Acks(NamedTuple):
    ends: tuple[SpanEnd, ...]


_Item = WriteBlock | _Acks | Stop
"""What waits to be written."""


@dataclass(slots=True, eq=False)
class _Stream:
    slice: int
    bounds: list[int]
    lanes: list[deque[tuple[int, _Item]]]
    """What waits, with the number of its arrival."""
    owed_bytes: list[int]
    """By lane: credit of blocks that were written, not yet given back."""
    flushes: list[deque[tuple[int, int]]]
    """By lane: Flushes, with the number of their arrival."""
    arrivals: int = 0

    def put(self, lane: int, item: _Item) -> None:
        self.arrivals += 1
        self.lanes[lane].append((self.arrivals, item))

    def put_flush(self, lane: int, number: int) -> None:
        self.arrivals += 1
        self.flushes[lane].append((self.arrivals, number))

    def take_flushes(self) -> Iterator[int]:
        """Those before which nothing of their lane waits any more."""
        for flushes, waiting in zip(self.flushes, self.lanes, strict=True):
            oldest = waiting[0][0] if waiting else self.arrivals + 1
            while flushes and flushes[0][0] < oldest:
                yield flushes.popleft()[1]


class QueueState:
    def __init__(self, slices: int, lanes: int, soft_bytes: int, hard_bytes: int) -> None:
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
        self._flushes: dict[int, list[Flushed]] = {}
        self._starving = False
        self._made = 0
        self._pinned: dict[tuple[int, int], int] = {}
        self._account = Account()
        self._written_bytes = 0
        self._is_moving = False
        self._copied_bytes = 0
        """Written a second time, and not yet given back where it was first."""

    @property
    def held_bytes(self) -> int:
        """What is on disk."""
        return self._written_bytes - self._account.given_back_bytes

    @property
    def needed_bytes(self) -> int:
        """What counts."""
        return self.held_bytes - self._account.unneeded_bytes - self._copied_bytes

    def append(self, slice: int, head: BlockHead, body: object) -> list[Effect]:
        self._streams[slice].put(head.lane, WriteBlock(slice, head, body))
        return self._advance()

    def end(self, slice: int, lane: int, ends: Sequence[SpanEnd]) -> list[Effect]:
        self._streams[slice].put(lane, _Acks(tuple(ends)))
        return self._advance()

    def stop(self, slice: int, lane: int, places: Sequence[int], made: int) -> list[Effect]:
        self._streams[slice].put(lane, Stop(tuple(places), made))
        return self._advance()

    def bound(self, slice: int, bounds: Sequence[int]) -> list[Effect]:
        self._streams[slice].bounds = list(bounds)
        return self._advance()

    def flush(self, slice: int, lane: int, number: int) -> list[Effect]:
        self._streams[slice].put_flush(lane, number)
        return self._advance()

    def synced(self, number: int) -> list[Effect]:
        return [*self._flushes.pop(number), *self._grants()]

    def needs(self, account: Account) -> list[Effect]:
        """What of the file is needed has changed."""
        self._account = account
        return self._moves() + self._grants()

    def moving(self, size: int) -> None:
        self._written_bytes += size
        self._copied_bytes = size

    def moved(self, account: Account) -> list[Effect]:
        self._is_moving = False
        self._copied_bytes = 0
        return self.needs(account)

    def starve(self, starving: bool, made: int) -> list[Effect]:
        """Whether the consumer asks for more than the checkpoints that were made."""
        self._starving = starving
        self._made = max(self._made, made)
        return self._grants()

    def reason(self) -> str:
        """Why Slices are being held back, or nothing."""
        if self.needed_bytes < self._soft_bytes:
            return ""
        return f"queue over {_size(self._soft_bytes)}{self._holding()}"

    # -- deciding --------------------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        effects: list[Effect] = []
        while (found := self._next()) is not None:
            _, item = found.popleft()
            if isinstance(item, WriteBlock):
                effects.append(item)
                self._wrote(item)
            elif isinstance(item, Stop):
                effects.append(item)
                self._stopped(set(item.places))
            else:
                effects += self._ended(item)
        for stream in self._streams:
            for number in stream.take_flushes():
                self._flushes.setdefault(self._syncs, []).append(Flushed(stream.slice, number))
        if self._syncs in self._flushes:
            effects.append(Sync(self._syncs))
            self._syncs += 1
        return effects + self._moves() + self._grants()

    def _next(self) -> deque[tuple[int, _Item]] | None:
        """Where the item stands that may be written now."""
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
                stream is not best[1] and _may_precede(stream, lane, best[0])
                for stream in self._streams
            ):
                return best[1].lanes[lane]
        return None

    def _ended(self, item: _Acks) -> list[Effect]:
        for each in item.ends:
            self._pinned.pop((each.place, each.producer), None)
        retracted = tuple(each for each in item.ends if not each.committed)
        return [Retract(retracted)] if retracted else []

    def _stopped(self, places: set[int]) -> None:
        for key in [key for key in self._pinned if key[0] in places]:
            del self._pinned[key]

    def _wrote(self, block: WriteBlock) -> None:
        size = block_bytes(block.head, block.body)
        self._streams[block.slice].owed_bytes[block.head.lane] += size
        self._written_bytes += size
        pairs = block.head.pair_rows()
        for place, producer, _, _, rows in pairs.tolist():
            key = place, producer
            self._pinned[key] = self._pinned.get(key, 0) + size * rows // block.head.rows
        if self.needed_bytes > self._hard_bytes:
            raise self._full()

    def _moves(self) -> list[Effect]:
        """Once that gives back more than it costs, or must be."""
        unneeded = self._account.unneeded_bytes
        little = max(self._account.open_bytes, self._soft_bytes // _LITTLE_SHARE)
        is_worth_it = unneeded > min(little, self._hard_bytes // _MUCH_SHARE)
        if self._is_moving or not (is_worth_it or (unneeded and self._is_over_full)):
            return []
        self._is_moving = True
        return [Move(min(_PORTION_BYTES, self._hard_bytes // _PORTION_SHARE))]

    @property
    def _is_over_full(self) -> bool:
        return self.held_bytes >= self._hard_bytes

    @property
    def _is_starving(self) -> bool:
        """Whoever has checkpoints left to release does not, but for the last one, which some keep
        until they have the next."""
        return self._starving and self._account.released >= self._made - 1

    def _grants(self) -> list[Effect]:
        # What is being flushed may be what a starving consumer waits for.
        if self.needed_bytes >= self._soft_bytes and (not self._is_starving or self._flushes):
            return []
        if self._is_moving and self._is_over_full:
            return []
        effects: list[Effect] = []
        for stream in self._streams:
            for lane, size in enumerate(stream.owed_bytes):
                if size:
                    effects.append(Grant(stream.slice, lane, size))
                    stream.owed_bytes[lane] = 0
        return effects

    def _full(self) -> StorageError:
        what = f"queue over its limit of {_size(self._hard_bytes)}{self._holding()}"
        if self.needed_bytes - self._account.shown_bytes <= self._hard_bytes:
            remedy = "a retry helps, if checkpoints are released once their documents are stored"
            return QueueFullError(what, do=remedy)
        if self._is_mostly_ended:
            # A consumer that asks gets what is committed, but for what a hint withholds.
            remedy = "a retry helps, if the journals that those wait for can be read by then"
            return QueueFullError(what, do=remedy)
        return StorageError(
            what, do="a retry will not help: raise the limit, or make the transaction smaller"
        )

    @property
    def _ended_bytes(self) -> int:
        """Of transactions whose ACK is here, and which no checkpoint has shown."""
        known = self._account.shown_bytes + self._account.partly_bytes
        return max(0, self.needed_bytes - known - sum(self._pinned.values()))

    @property
    def _is_mostly_ended(self) -> bool:
        """More than half of what is not shown is not held by open transactions."""
        return self._ended_bytes > sum(self._pinned.values())

    def _holding(self) -> str:
        """What the consumer holds, what is withheld, and who has most in an open transaction."""
        account, found = self._account, []
        if account.shown_bytes:
            found.append(f"{_size(account.shown_bytes)} in checkpoints that are not released")
        if account.read < self._made - 1:
            found.append(f"checkpoints {account.read + 1} to {self._made} not read")
        if self._is_mostly_ended:
            found.append(f"{_size(self._ended_bytes)} of transactions that ended, not shown yet")
        if self._pinned:
            (place, producer), size = max(self._pinned.items(), key=lambda item: item[1])
            who = format_producer(Producer(producer))
            found.append(f"{_size(size)} pinned by producer {who} in place {place}")
        return "".join(f", {each}" for each in found)


def _may_precede(stream: _Stream, lane: int, low: int) -> bool:
    """Whether the Slice may still send something before it, in this lane or an earlier one."""
    if any(bound < INFINITE for bound in stream.bounds[:lane]):
        return True
    # What waits here of the lane is not before it, and nor is what will follow that.
    return not stream.lanes[lane] and stream.bounds[lane] < low


def _size(bytes: int) -> str:
    return f"{bytes / (1 << 30):.1f} GiB" if bytes >= 1 << 30 else f"{bytes / (1 << 20):.1f} MiB"
