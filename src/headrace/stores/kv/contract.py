"""What every key-value store promises: atomic batches, honest durability, snapshots, scans.

A batch is applied whole or not at all, also across a crash. `write` returns when readers see it,
and `wait_durable` when it survives a power failure. Writes become durable in order. After a write
or a sync fails, every later one fails too, until the store is opened anew: nobody knows what the
disk holds.

A store belongs to one process, which may use it from many threads. Only one of them writes at a
time; the others read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import NewType, Self

from headrace.errors import UsageError

WriteSequence = NewType("WriteSequence", int)
"""Numbers the batches of a store, ascending. Zero comes before all of them."""

KEY_BYTES_MAX = 480
"""Longer keys are refused, by every backend."""


class WriteBatch:
    """Puts and deletes that become visible together. The last one of a key counts."""

    __slots__ = ("changes", "size_bytes")

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}
        """The new value of each key; None deletes it."""
        self.size_bytes = 0
        """Bytes of all keys and values that were put or deleted, overwritten ones included."""

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value
        self.size_bytes += len(key) + len(value)

    def put_many(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        self.changes[key] = None
        self.size_bytes += len(key)

    def check(self) -> None:
        """Raise UsageError if no store can hold one of the keys. Every store asks first."""
        lengths = set(map(len, self.changes))
        if lengths and not 1 <= min(lengths) <= max(lengths) <= KEY_BYTES_MAX:
            length = max(lengths) if 0 not in lengths else 0
            raise UsageError(
                f"a batch has a key of {length} bytes",
                do=f"use keys of 1 to {KEY_BYTES_MAX} bytes",
            )


class KeyValueSnapshot(ABC):
    """The store as it was at one moment, whole batches only. Any thread may use it."""

    @property
    @abstractmethod
    def sequence(self) -> WriteSequence:
        """The last batch that it shows."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, in the order of the keys."""

    @abstractmethod
    def scan(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with start ≤ key < end, ascending; descending if `reverse`.

        None as the end means no end.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the snapshot holds. Closing twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class KeyValueStore(ABC):
    """One ordered map from bytes to bytes."""

    @abstractmethod
    def write(self, batch: WriteBatch) -> WriteSequence:
        """Apply the batch, so that new snapshots show it. It may not be durable yet."""

    @abstractmethod
    def wait_durable(self, sequence: WriteSequence) -> None:
        """Return when that batch and all before it survive a power failure. Any thread may wait."""

    @property
    @abstractmethod
    def durable_sequence(self) -> WriteSequence:
        """The last batch that is known to survive a power failure."""

    @abstractmethod
    def snapshot(self) -> KeyValueSnapshot:
        """Return the store as it is now. A snapshot may delay the reuse of space: close it."""

    @abstractmethod
    def close(self) -> None:
        """Make everything durable, and free the store for others. Closing twice does nothing."""


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the least key above all that begin with the prefix; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
