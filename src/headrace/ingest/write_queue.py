"""Writes that nobody merged yet: gives them epochs, and keeps to the limits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple

from headrace.errors import HeadraceError, QueueFullError, UsageError, from_wire
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


class WriteQueue(Generic[D]):
    """Decides whether a write fits, before anything of it is taken.

    What a write gets is an epoch, or an error and its delta back as it was: it is never taken by
    half, and an error uses up no epoch.
    """

    def __init__(self, settings: IngestSettings, name: str) -> None:
        self._name = name
        self._settings = settings
        self._wake_commands = max(1, settings.commands_max // _WAKE_SHARE)
        self._wake_bytes = max(1, settings.flush_at_bytes // _WAKE_SHARE)
        self._deltas: list[D] = []
        self._refusal: HeadraceError | None = None
        self.last = Epoch(0)
        """The last epoch that was given."""
        self.queued_bytes = 0
        self.held_bytes = 0
        """What was taken from the queue, and is not durable yet."""
        self.refused = 0
        """Writes that found no room."""
        self.is_short = False
        """True if a write was refused for want of room, since the last `take`."""

    @property
    def depth(self) -> int:
        return len(self._deltas)

    @property
    def is_much(self) -> bool:
        """True if so much is queued that the coordinator merges it without being asked."""
        return len(self._deltas) >= self._wake_commands or self.queued_bytes >= self._wake_bytes

    def add(self, delta: D) -> Epoch:
        """Take a write. An empty one changes nothing, and gets the epoch of the last."""
        if self._refusal:
            raise same_error(self._refusal)
        if delta.is_empty:
            return self.last
        queued_bytes = self.queued_bytes + delta.size_bytes
        if (
            queued_bytes + self.held_bytes > self._settings.pending_bytes_max
            or len(self._deltas) >= self._settings.commands_max
        ):
            raise self._no_room(1, delta.size_bytes)
        self._deltas.append(delta)
        self.queued_bytes = queued_bytes
        self.last = Epoch(self.last + 1)
        return self.last

    def add_all(self, deltas: Sequence[D], size_bytes: int) -> Epoch:
        """Take all of the writes, which have that size, or none; return the epoch of the last."""
        if self._refusal:
            raise same_error(self._refusal)
        if (
            self.queued_bytes + size_bytes + self.held_bytes > self._settings.pending_bytes_max
            or len(self._deltas) + len(deltas) > self._settings.commands_max
        ):
            raise self._no_room(len(deltas), size_bytes)
        self._deltas += deltas
        self.queued_bytes += size_bytes
        self.last = Epoch(self.last + len(deltas))
        return self.last

    def take(self) -> QueuedWrites[D]:
        """Take all that is queued."""
        taken = QueuedWrites(self._deltas, self.last, self.is_short)
        self._deltas = []
        self.held_bytes += self.queued_bytes
        self.queued_bytes = 0
        self.is_short = False
        return taken

    def refuse(self, error: HeadraceError) -> None:
        """Refuse every write from now on."""
        self._refusal = error

    def _no_room(self, count: int, size: int) -> HeadraceError:
        settings = self._settings
        if size > settings.pending_bytes_max:
            return UsageError(
                f"{self._name}: a write of {size} bytes is above pending_bytes_max, which is "
                f"{settings.pending_bytes_max}",
                do="write less at once, or allow more",
            )
        if count > settings.commands_max:
            return UsageError(
                f"{self._name}: {count} writes at once are above commands_max, which is "
                f"{settings.commands_max}",
                do="write fewer at once, or allow more",
            )
        self.is_short = True
        self.refused += 1
        return QueueFullError(
            f"{self._name}: a write of {size} bytes finds no room beside {self.depth} writes of "
            f"{self.queued_bytes} bytes in the queue, and {self.held_bytes} bytes that are not "
            "durable",
            do="write the same again later, or name a timeout_s to wait for room",
        )
