"""The bytes that open transactions pin in a Queue, and what a Queue near its limit says. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import QueueFullError, StorageError
from headrace.ids import Producer, format_producer
from headrace.shuffle.block import BlockHead
from headrace.shuffle.queue.space import FileSpace


class PinnedBytes:
    """What each producer has written in each place since its last ACK there.

    A block of several producers counts for each of them by its rows.
    """

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, int], int] = {}
        """By place and producer."""

    @property
    def total(self) -> int:
        return sum(self._bytes.values())

    def pin(self, head: BlockHead, size: int) -> None:
        for place, producer, _, _, rows in head.pair_rows().tolist():
            key = place, producer
            self._bytes[key] = self._bytes.get(key, 0) + size * rows // head.rows

    def unpin(self, place: int, producer: int) -> None:
        """The transaction of the producer has ended there."""
        self._bytes.pop((place, producer), None)

    def unpin_places(self, places: Iterable[int]) -> None:
        """Nobody reads these places any more."""
        stopped = set(places)
        for key in [key for key in self._bytes if key[0] in stopped]:
            del self._bytes[key]

    def most(self) -> tuple[int, int, int] | None:
        """The place and the producer that pin most, and their bytes."""
        if not self._bytes:
            return None
        (place, producer), size = max(self._bytes.items(), key=lambda item: item[1])
        return place, producer, size

    def validate(self) -> None:
        assert all(size >= 0 for size in self._bytes.values())


def full_error(
    hard_bytes: int, space: FileSpace, pinned: PinnedBytes, checkpoint: int
) -> StorageError:
    """The error of a Queue above its hard limit; a `QueueFullError` if a retry can help.

    `checkpoint` is the last one that the Session has made.
    """
    what = f"the Queue is over its hard limit of {_size(hard_bytes)}"
    what += _describe(space, pinned, checkpoint)
    if space.needed_bytes - space.shown_bytes <= hard_bytes:
        return QueueFullError(
            what, do="release each checkpoint once its documents are stored, and try again"
        )
    if _is_mostly_ended(space, pinned):
        # A consumer that asks gets all that is committed, except what hints withhold.
        return QueueFullError(
            what, do="try again once the journals that these transactions wait for can be read"
        )
    return StorageError(
        what, do="raise queue_hard_bytes or make the transaction smaller: a retry will not help"
    )


def soft_limit_reason(
    soft_bytes: int, space: FileSpace, pinned: PinnedBytes, checkpoint: int
) -> str:
    """Says why a Queue at its soft limit holds Slices back."""
    limit = f"the Queue is over its soft limit of {_size(soft_bytes)}"
    return limit + _describe(space, pinned, checkpoint)


def _describe(space: FileSpace, pinned: PinnedBytes, checkpoint: int) -> str:
    """Says what the Queue holds: for the consumer, for hints, for open transactions."""
    found = []
    if space.shown_bytes:
        found.append(f"{_size(space.shown_bytes)} in checkpoints that are not released")
    if space.last_read < checkpoint - 1:
        found.append(f"checkpoints {space.last_read + 1} to {checkpoint} are not read")
    if _is_mostly_ended(space, pinned):
        ended = _size(_ended_bytes(space, pinned))
        found.append(f"{ended} of transactions that have ended and that no checkpoint shows yet")
    if most := pinned.most():
        place, producer, size = most
        who = format_producer(Producer(producer))
        found.append(f"{_size(size)} pinned by producer {who} in place {place}")
    return "".join(f", {each}" for each in found)


def _ended_bytes(space: FileSpace, pinned: PinnedBytes) -> int:
    """What belongs to transactions whose ACK is here, and which no checkpoint has shown."""
    known_bytes = space.shown_bytes + space.partly_shown_bytes + pinned.total
    return max(0, space.needed_bytes - known_bytes)


def _is_mostly_ended(space: FileSpace, pinned: PinnedBytes) -> bool:
    """True if ended transactions hold more than open ones of what no checkpoint has shown."""
    return _ended_bytes(space, pinned) > pinned.total


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"
