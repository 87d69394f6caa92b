"""Decides which checkpoints a store takes, and in which order their records are written.

A record travels with its rows in one write. So what this object knows is what the store will hold
when the writes that it was asked for are durable. After a write that failed it asks the store.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

from headrace.stores.checkpoint_record import (
    CheckpointRecord,
    StoreCheckpoint,
    advance,
    checkpoint_key,
    take_over,
)

WriteRecord = Callable[[dict[bytes, bytes]], None]
"""Puts records, and what belongs to them, in one atomic write; returns when it is durable."""


class TaskLocks:
    """A lock for each task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def of(self, task: str) -> threading.Lock:
        with self._lock:
            return self._locks[task]


class TaskCheckpoints:
    """The tasks that write to one store. Any thread may use it; one works for a task at a time."""

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        """`read` returns what the store holds under a key, with all writes that were taken."""
        self._read = read
        self._locks = TaskLocks()
        self._records: dict[str, CheckpointRecord | None] = {}

    def generation(self, task: str) -> str:
        """Return the generation that writes as a task; empty if none does."""
        with self._locks.of(task):
            record = self._record(task)
            return record.generation if record else ""

    def take(
        self, task: str, generation: str, write: WriteRecord, instead_of: str | None = None
    ) -> int:
        """Let a generation begin, and refuse those before it: see `Store.take`."""
        with self._locks.of(task):
            record = self._record(task)
            taken = take_over(record, task, generation, instead_of)
            if taken != record:
                self._write(task, taken, write)
            return taken.number

    def apply(self, checkpoint: StoreCheckpoint, write: WriteRecord) -> bool:
        """Call `write`, unless the store holds the checkpoint already: see `Store.apply`."""
        with self._locks.of(checkpoint.task):
            advanced = advance(self._record(checkpoint.task), checkpoint)
            if advanced is None:
                return False
            self._write(checkpoint.task, advanced, write)
            return True

    def _write(self, task: str, record: CheckpointRecord, write: WriteRecord) -> None:
        # If this is interrupted, nobody knows whether the store took the write: ask it again.
        self._records.pop(task, None)
        write({checkpoint_key(task): record.encode()})
        self._records[task] = record

    def _record(self, task: str) -> CheckpointRecord | None:
        if task not in self._records:
            self._records[task] = CheckpointRecord.decode(self._read(checkpoint_key(task)))
        return self._records[task]
