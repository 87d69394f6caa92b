"""Opens an operator as a worker does, and hands it units."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import cloudpickle
import pyarrow as pa

from headrace.pipeline.calls.runner import CallRunner
from headrace.pipeline.contract import Ledger, OperatorContext, Processed, RateLimit, UnitRows
from headrace.pipeline.operators.operator import OperatorSpec

T = TypeVar("T")

UNIT = "u1"


def with_operator(
    spec: OperatorSpec,
    use: Callable[[CallRunner], Awaitable[T]],
    *,
    ledger: Ledger | None = None,
    rate_limit: RateLimit | None = None,
) -> T:
    """Send the spec through cloudpickle, open it, use it and close it."""

    async def in_loop() -> T:
        arrived: OperatorSpec = cloudpickle.loads(cloudpickle.dumps(spec))
        context = OperatorContext(
            "captions", "worker-1", ledger_stage="captions@1", ledger=ledger, rate_limit=rate_limit
        )
        operator = await arrived.open(context)
        try:
            return await use(operator)
        finally:
            await operator.close()

    return asyncio.run(in_loop())


def process(
    spec: OperatorSpec, rows: list[dict[str, Any]] | pa.Table | UnitRows, **context: Any
) -> Processed:
    """Process one unit."""
    unit = rows if isinstance(rows, UnitRows) else UnitRows(UNIT, as_table(rows))
    return with_operator(spec, lambda operator: operator.process(unit), **context)


def as_table(rows: list[dict[str, Any]] | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)


def rows_of(processed: Processed) -> list[dict[str, Any]]:
    return [] if processed.table is None else processed.table.to_pylist()
