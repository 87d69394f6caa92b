"""Sinks that are Python functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa

from headrace.pipeline.contract import OnError, OperatorContext, Processed, UnitRows
from headrace.pipeline.source.source_units import digest
from headrace.plan.source_hash import source_hash

SinkFunction = Callable[[pa.Table, str], Any]


class CallableSink:
    """Hands the rows of each unit to a function, with an idempotency key.

    After a crash the function may get the rows of a unit again: the same rows, with the same key.
    It must then change nothing. It may be `async def`.
    """

    expensive = False
    on_error: OnError = "fail"
    is_sink = True

    def __init__(self, function: SinkFunction, *, version: str = "") -> None:
        self._function = function
        self._version = version

    def fingerprint(self) -> str:
        return self._version or source_hash(self._function)

    async def open(self, context: OperatorContext) -> OpenSink:
        return OpenSink(self._function, context.ledger_stage or context.stage)


class OpenSink:
    """A sink in a worker."""

    def __init__(self, function: SinkFunction, stage: str) -> None:
        self._function = function
        self._stage = stage

    async def process(self, rows: UnitRows) -> Processed:
        if rows.probe:
            await rows.probe(range(rows.table.num_rows))
        key = digest("sink", self._stage, rows.unit)
        if inspect.iscoroutinefunction(self._function):
            await self._function(rows.table, key)
        else:
            returned = await asyncio.to_thread(self._call, rows.table, key)
            if isinstance(returned, Awaitable):
                await returned
        return Processed(None, calls=1)

    def _call(self, table: pa.Table, key: str) -> Any:
        try:
            return self._function(table, key)
        except StopIteration as error:  # No future takes it, so the run would wait for ever.
            raise RuntimeError("the function raised StopIteration") from error

    async def close(self) -> None:
        """Nothing is open."""
