"""A store in memory for tests of the coordinator, with flushes that the tests hold or fail."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from headrace.ingest.contract import FlushResult

ROW_BYTES = 10


class MapDelta:
    """Puts of keys. The last one counts."""

    def __init__(self, rows: Mapping[str, int] | None = None) -> None:
        self.rows = dict(rows or {})

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def size_bytes(self) -> int:
        return ROW_BYTES * len(self.rows)

    def merge(self, other: MapDelta) -> None:
        self.rows.update(other.rows)

    def copy(self) -> MapDelta:
        return MapDelta(self.rows)


class MapSnapshot(dict[str, int]):
    """All rows of a store. Unlike a dict, it can be referred to weakly."""


class MapHandler:
    """Applies deltas to snapshots; what is durable survives `crash`.

    A test may hold flushes and syncs, and make the next one fail.
    """

    def __init__(self) -> None:
        self.flushes_allowed = threading.Event()
        self.flushes_allowed.set()
        self.syncs_allowed = threading.Event()
        self.syncs_allowed.set()
        self.flush_error: BaseException | None = None
        self.sync_error: BaseException | None = None
        self.flushed: list[dict[str, int]] = []
        """The rows of each flush."""
        self.synced: list[int] = []
        self.flush_began = threading.Event()
        self.sync_began = threading.Event()

    def execute_flush(self, delta: MapDelta, snapshot: MapSnapshot) -> FlushResult[MapSnapshot]:
        self.flush_began.set()
        assert self.flushes_allowed.wait(30)
        if self.flush_error is not None:
            raise self.flush_error
        self.flushed.append(dict(delta.rows))
        return FlushResult(MapSnapshot(snapshot | delta.rows), len(self.flushed))

    def wait_durable(self, sequence: int) -> None:
        self.sync_began.set()
        assert self.syncs_allowed.wait(30)
        if self.sync_error is not None:
            raise self.sync_error
        self.synced.append(sequence)


def rows_of(deltas: Iterable[MapDelta]) -> dict[str, int]:
    """Return what deltas show together, given newest first."""
    rows: dict[str, int] = {}
    for delta in deltas:
        rows = delta.rows | rows
    return rows
