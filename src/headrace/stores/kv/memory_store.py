"""Keys and values in memory, for tests and for data that nobody needs again."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from headrace.stores.kv.contract import (
    KeyValueSnapshot,
    KeyValueStore,
    WriteBatch,
    WriteSequence,
)
from headrace.stores.kv.kv_refusal import check_written, closed_snapshot, closed_store


class MemoryKeyValueStore(KeyValueStore):
    """A store that lives as long as its process: that is how durable its batches are.

    The first write after a snapshot copies all keys, and takes time for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._is_shared = False
        """True if a snapshot shows `_entries` and `_keys`, so that no write may change them."""
        self._sequence = WriteSequence(0)
        self._is_closed = False

    def write(self, batch: WriteBatch) -> WriteSequence:
        batch.check()
        with self._lock:
            self._check_open()
            if batch.changes:
                self._apply(batch.changes)
                self._sequence = WriteSequence(self._sequence + 1)
            return self._sequence

    def _apply(self, changes: Mapping[bytes, bytes | None]) -> None:
        entries = dict(self._entries) if self._is_shared else self._entries
        begin = len(entries)
        puts = {key: value for key, value in changes.items() if value is not None}
        added = [key for key in puts if key not in entries]
        entries.update(puts)
        for key, value in changes.items():
            if value is None:
                entries.pop(key, None)
        if added or len(entries) != begin:
            kept = (
                self._keys
                if len(entries) == begin + len(added)
                else filter(entries.__contains__, self._keys)
            )
            self._keys = sorted([*kept, *added])
        self._entries = entries
        self._is_shared = False

    def wait_durable(self, sequence: WriteSequence) -> None:
        check_written(sequence, self._sequence)

    @property
    def durable_sequence(self) -> WriteSequence:
        return self._sequence

    def snapshot(self) -> KeyValueSnapshot:
        with self._lock:
            self._check_open()
            self._is_shared = True
            return MemorySnapshot(self._sequence, self._entries, self._keys)

    def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_store("in memory")


class MemorySnapshot(KeyValueSnapshot):
    def __init__(
        self, sequence: WriteSequence, entries: dict[bytes, bytes], keys: list[bytes]
    ) -> None:
        self._sequence = sequence
        self._entries: dict[bytes, bytes] | None = entries
        self._keys = keys

    @property
    def sequence(self) -> WriteSequence:
        return self._sequence

    def get(self, key: bytes) -> bytes | None:
        return self._shown().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._shown().get, keys))

    def scan(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = self._shown()
        first = bisect_left(self._keys, start)
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        keys = self._keys[first:last]
        return ((key, entries[key]) for key in (reversed(keys) if reverse else keys))

    def close(self) -> None:
        self._entries = None

    def _shown(self) -> dict[bytes, bytes]:
        if self._entries is None:
            raise closed_snapshot()
        return self._entries
