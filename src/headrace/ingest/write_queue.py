"""Writes that nobody merged yet: gives them epochs, and keeps to the limits. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from headrace.errors import HeadraceError, QueueFullError, from_wire
from headrace.ingest.contract import D, Epoch
from headrace.settings import IngestSettings

_WAKE_SHARE = 4
"""The coordinator merges without being asked when this share of a limit is queued."""


def same_error(error: HeadraceError) -> HeadraceError:
    """Return a copy to raise: several threads must not share one traceback."""
    copy = from_wire(type(error).__name__, error.what, error.do)
    copy.__cause__ = error.__cause__
    return copy


class QueuedWrites(NamedTuple, Generic[D]):
    """What the coordinator takes from the queue at once."""

    deltas: Sequence[D]
    last: Epoch
    """The epoch of the last of them."""
    is_short: bool = False
    """True if a write found no room since the time before: a flush would make some."""


class Room(NamedTuple):
    """What counts towards the limits."""

    writes: int
    size_bytes: int

    def plus(self, other: Room) -> Room:
        return Room(self.writes + other.writes, self.size_bytes + other.size_bytes)

    def minus(self, other: Room) -> Room:
        return Room(self.writes - other.writes, self.size_bytes - other.size_bytes)


_NOTHING = Room(0, 0)


@dataclass(eq=False)
class RoomTicket:
    """Somebody who waits for room, and what they need."""

    count: int
    size_bytes: int
    granted: Any
    """What the actor tells when there is room, or never will be."""
    is_granted: bool = False


class WriteQueue(Generic[D]):
    """Decides whether a write fits, before anything of it is taken.

    What a write gets is an epoch, or an error and its delta back as it was: it is never taken by
    half, and an error uses up no epoch.

    Those who wait for room get it in their order. Whoever does not wait is taken only if it fits
    beside all that they need, so a large write is not overtaken by small ones for ever.

    A write that is larger than a limit is taken when nothing else counts towards that limit.
    """

    def __init__(self, settings: IngestSettings, name: str) -> None:
        self._name = name
        self._commands_max = settings.commands_max
        self._bytes_max = settings.pending_bytes_max
        self._wake_commands = max(1, settings.commands_max // _WAKE_SHARE)
        self._wake_bytes = max(1, settings.flush_at_bytes // _WAKE_SHARE)
        self._deltas: list[D] = []
        self._refusal: HeadraceError | None = None
        self._waiting: deque[RoomTicket] = deque()
        self._is_short = False
        self._reserved = _NOTHING
        """What all who wait need."""
        self._granted = _NOTHING
        """What those need who were told that there is room, and have not written yet."""
        self.last = Epoch(0)
        """The last epoch that was given."""
        self.queued_bytes = 0
        self.held_bytes = 0
        """What was taken from the queue, and is not durable yet."""
        self.refused = 0
        """Writes that found no room."""

    @property
    def depth(self) -> int:
        return len(self._deltas)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    @property
    def is_short(self) -> bool:
        """True if a write found no room since the last `take`, or began to wait for some."""
        return self._is_short

    @property
    def is_much(self) -> bool:
        """True if so much is queued that the coordinator merges it without being asked."""
        return len(self._deltas) >= self._wake_commands or self.queued_bytes >= self._wake_bytes

    def add(self, delta: D) -> Epoch:
        """Take a write. An empty one changes nothing, and gets the epoch of the last."""
        size_bytes = delta.size_bytes
        if self._refusal or self._waiting or not self._fits(1, size_bytes, _NOTHING):
            return self.add_all([] if delta.is_empty else [delta], size_bytes)
        if delta.is_empty:
            return self.last
        self._deltas.append(delta)
        self.queued_bytes += size_bytes
        self.last = Epoch(self.last + 1)
        return self.last

    def add_all(
        self, deltas: Sequence[D], size_bytes: int, ticket: RoomTicket | None = None
    ) -> Epoch:
        """Take all of the writes, which have that size, or none; return the epoch of the last.

        None of them may be empty. Whoever has waited for room gives the ticket.
        """
        if self._refusal:
            raise same_error(self._refusal)
        if not deltas:
            return self.last
        if ticket is not None:
            has_room = ticket.is_granted
        else:
            has_room = self._fits(len(deltas), size_bytes, self._reserved)
        if not has_room:
            self._is_short = True
            self.refused += 1
            raise self._no_room(size_bytes)
        self._deltas += deltas
        self.queued_bytes += size_bytes
        self.last = Epoch(self.last + len(deltas))
        return self.last

    def wait_for_room(self, ticket: RoomTicket) -> None:
        """Stand in line. Call `leave` afterwards, whatever comes of it."""
        if not self._fits(ticket.count, ticket.size_bytes, self._reserved):
            self._is_short = True  # A flush may have made room since, and others taken that.
        self._waiting.append(ticket)
        self._reserved = self._reserved.plus(self._need(ticket))

    def leave(self, ticket: RoomTicket) -> None:
        """Give up what was reserved, or was written meanwhile."""
        if ticket not in self._waiting:
            return  # Ctrl-C came before it was in line.
        self._waiting.remove(ticket)
        self._reserved = self._reserved.minus(self._need(ticket))
        if ticket.is_granted:
            self._granted = self._granted.minus(self._need(ticket))

    def grant(self) -> list[RoomTicket]:
        """Return the first in line for whom there is room, and who were not told so before."""
        told = []
        for ticket in self._waiting:
            if ticket.is_granted:
                continue
            if not self._refusal and not self._fits(ticket.count, ticket.size_bytes, self._granted):
                break
            ticket.is_granted = True
            self._granted = self._granted.plus(self._need(ticket))
            told.append(ticket)
        return told

    def take(self) -> QueuedWrites[D]:
        """Take all that is queued."""
        is_short = self._is_short or any(not each.is_granted for each in self._waiting)
        taken = QueuedWrites(self._deltas, self.last, is_short)
        self._deltas = []
        self.held_bytes += self.queued_bytes
        self.queued_bytes = 0
        self._is_short = False
        return taken

    def refuse(self, error: HeadraceError) -> None:
        """Refuse every write from now on. Those who wait for room are granted the same error."""
        self._refusal = error

    def _fits(self, count: int, size_bytes: int, beside: Room) -> bool:
        held_bytes = self.queued_bytes + self.held_bytes + beside.size_bytes
        return (
            held_bytes + min(size_bytes, self._bytes_max) <= self._bytes_max
            and len(self._deltas) + beside.writes + min(count, self._commands_max)
            <= self._commands_max
        )

    def _need(self, ticket: RoomTicket) -> Room:
        return Room(min(ticket.count, self._commands_max), min(ticket.size_bytes, self._bytes_max))

    def _no_room(self, size_bytes: int) -> HeadraceError:
        return QueueFullError(
            f"{self._name}: a write of {size_bytes} bytes finds no room beside {self.depth} writes "
            f"of {self.queued_bytes} bytes in the queue, {self.held_bytes} bytes that are not "
            f"durable, and {self.waiting} who wait for room",
            do="write the same again later, or name a timeout_s to wait for room",
        )
