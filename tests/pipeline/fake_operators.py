"""Operators with a script: they fail, die and stall where a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from headrace.pipeline.contract import (
    OnError,
    OpenOperator,
    OperatorContext,
    Processed,
    UnitRows,
)


class Killed(BaseException):
    """Stands for the end of a worker's process."""


class FakeOperator:
    """Applies a function to the table of each unit, and counts how often it saw each unit."""

    expensive = False

    def __init__(
        self,
        function: Callable[[pa.Table], pa.Table | None],
        *,
        version: str = "1",
        on_error: OnError = "fail",
        before: Callable[[str, Sequence[int]], object] = lambda unit, rows: None,
    ) -> None:
        """`before(unit, rows)` runs before rows are processed."""
        self._function = function
        self._version = version
        self.on_error: OnError = on_error
        self.before = before
        self._lock = threading.Lock()
        self.seen: dict[str, int] = {}

    def fingerprint(self) -> str:
        return self._version

    async def open(self, context: OperatorContext) -> OpenOperator:
        return self

    async def process(self, rows: UnitRows) -> Processed:
        with self._lock:
            self.seen[rows.unit] = self.seen.get(rows.unit, 0) + 1
        kept = [row for row in range(rows.table.num_rows) if row not in rows.skip]
        if rows.probe is None:
            self.before(rows.unit, kept)
        else:
            for row in kept:
                await rows.probe([row])
                self.before(rows.unit, [row])
        return Processed(self._function(rows.table.take(kept)), calls=len(kept))

    async def close(self) -> None:
        """Nothing is open."""
