"""The storage of a simulated coordinator: in memory, and a crash leaves a part.

And the limits of the coordinator: some that are reached soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Self

from headrace.ingest.contract import FlushResult
from headrace.ingest.state import View
from headrace.settings import IngestSettings

Rows = Mapping[int, int]

ROW_BYTES = 10


def random_settings(chance: Random) -> IngestSettings:
    pending_bytes_max = ROW_BYTES * chance.randint(5, 30)
    return IngestSettings(
        commands_max=chance.randint(3, 12),
        pending_bytes_max=pending_bytes_max,
        flush_bytes=chance.choice([0, ROW_BYTES, pending_bytes_max]),
        flush_interval_s=chance.choice([1.0, 5.0, 1000.0]),
    )


class RowDelta:
    """Puts of numbered rows. The last one counts."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows: dict[int, int] = dict(rows or {})

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def size_bytes(self) -> int:
        return ROW_BYTES * len(self.rows)

    def merge(self, other: Self) -> None:
        self.rows.update(other.rows)

    def copy(self) -> RowDelta:
        return RowDelta(self.rows)


def rows_of_view(view: View[RowDelta, Rows]) -> Rows:
    """Return what a reader sees."""
    rows = dict(view.snapshot)
    for delta in reversed(view.deltas):
        rows.update(delta.rows)
    return rows


class SimulatedStorage:
    """Applies whole deltas in order. The first of them are durable, and the rest perhaps.

    It is what a store is to its coordinator, and it keeps every state that a crash may leave.
    """

    def __init__(self) -> None:
        self.states: list[dict[int, int]] = [{}]
        """What the storage held after each flush, from the last that is durable on."""
        self.durable_sequence = 0

    @property
    def sequence(self) -> int:
        return self.durable_sequence + len(self.states) - 1

    @property
    def durable_rows(self) -> Rows:
        return self.states[0]

    def apply(self, delta: RowDelta) -> FlushResult[Rows]:
        self.states.append(self.states[-1] | delta.rows)
        return FlushResult(self.states[-1], self.sequence)

    def sync(self, sequence: int) -> None:
        assert sequence <= self.sequence
        del self.states[: max(0, sequence - self.durable_sequence)]
        self.durable_sequence = max(self.durable_sequence, sequence)

    def crash(self, kept: int) -> None:
        """Lose what is not durable but for the first `kept` flushes of it."""
        self.sync(self.durable_sequence + kept)
        del self.states[1:]
