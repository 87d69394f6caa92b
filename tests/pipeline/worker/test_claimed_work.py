"""What a worker does beside its operator: the operator waits for no disk."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import StorageError
from headrace.pipeline.contract import Processed, UnitRows
from headrace.pipeline.job import Stage, StageConfig
from headrace.pipeline.payloads import Payloads
from headrace.pipeline.source.sources import TableSource
from tests.pipeline.fake_operators import FakeOperator
from tests.pipeline.jobs import chain, double, numbers, results, run

UNITS = 32
"""Two for each partition, so every claim has a message that comes after another."""
ONE_WORKER = StageConfig(workers=1)
WAIT_S = 30.0


class Count:
    """Counts what happened; whoever waits for a number of it fails if it never happens."""

    def __init__(self) -> None:
        self.value = 0
        self._changed = threading.Condition()

    def add(self, *_: Any) -> int:
        with self._changed:
            self.value += 1
            self._changed.notify_all()
            return self.value

    def wait_for(self, value: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.value >= value, WAIT_S)


class OperatorInThread(FakeOperator):
    """Processes in another thread, as functions that may block do."""

    async def process(self, rows: UnitRows) -> Processed:
        return await asyncio.to_thread(asyncio.run, super().process(rows))


def test_the_rows_of_the_next_message_are_loaded_while_one_is_processed(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, processed = Count(), Count()
    get = Payloads.get

    def counting_get(payloads: Payloads, ref: str) -> pa.Table:
        loaded.add()
        return get(payloads, ref)

    def wait_for_next(unit: str, rows: Any) -> None:
        number = processed.add()
        if number % 2:  # The first of its partition.
            loaded.wait_for(number + 1)

    monkeypatch.setattr(Payloads, "get", counting_get)
    operator = OperatorInThread(double, before=wait_for_next)
    job = chain(TableSource(numbers(UNITS), 1), Stage("double", operator, ONE_WORKER))
    assert run(workspace, job).outcome == "done"
    assert loaded.value == UNITS


def test_a_payload_is_stored_while_the_next_message_is_processed(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, processed = Count(), Count()
    put = Payloads.put

    def waiting_put(payloads: Payloads, stage: str, unit: str, table: pa.Table, **how: Any) -> str:
        number = stored.add()
        if number % 2:
            processed.wait_for(number + 1)
        return put(payloads, stage, unit, table, **how)

    monkeypatch.setattr(Payloads, "put", waiting_put)
    operator = OperatorInThread(double, before=processed.add)
    job = chain(TableSource(numbers(UNITS), 1), Stage("double", operator, ONE_WORKER))
    assert run(workspace, job).outcome == "done"
    assert results(workspace, job, "double") == [2 * n for n in range(UNITS)]


@pytest.mark.parametrize("failing", [1, 2, 17])
def test_a_payload_that_cannot_be_stored_fails_the_run_and_loses_nothing(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    stored = Count()
    put = Payloads.put

    def failing_put(payloads: Payloads, stage: str, unit: str, table: pa.Table, **how: Any) -> str:
        if stored.add() == failing:
            raise StorageError("the disk is full")
        return put(payloads, stage, unit, table, **how)

    monkeypatch.setattr(Payloads, "put", failing_put)
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(UNITS), 1), Stage("double", operator, ONE_WORKER))
    with pytest.raises(StorageError, match="the disk is full"):
        run(workspace, job)
    assert run(workspace, job).outcome == "done"
    assert results(workspace, job, "double") == [2 * n for n in range(UNITS)]
