"""What a worker does beside its operator: it waits for no disk, and commits each step once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.backoff import Backoff
from headrace.errors import StorageError, UnitError
from headrace.pipeline.contract import Processed, UnitRows
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.sources import TableSource
from headrace.pipeline.worker import claimed_work
from headrace.pipeline.worker.claimed_work import (
    COMMIT_RETRIES,
    STEP_OUTPUTS_MAX,
    STEP_S,
    ClaimedWork,
    WorkStep,
)
from headrace.queues.contract import OffsetCommit, Output
from headrace.queues.local_backend import LocalBackend
from tests.pipeline.fake_operators import FakeOperator, Killed
from tests.pipeline.jobs import LOCAL, MEMORY, chain, double, numbers, results, run, same

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


def test_a_step_is_due_after_some_time_or_with_many_outputs() -> None:
    assert WorkStep().is_due(STEP_S)
    output = Output("topic", b"")
    assert not WorkStep(outputs=[output] * (STEP_OUTPUTS_MAX - 1)).is_due(0.0)
    assert WorkStep(outputs=[output] * STEP_OUTPUTS_MAX).is_due(0.0)


def fail_commits(
    monkeypatch: pytest.MonkeyPatch, stage: str, failures: int, *, after: bool
) -> None:
    """Let the first commits of a stage fail, before or after they take effect; retry at once."""
    failed, original = Count(), LocalBackend.produce_and_commit

    async def failing(
        backend: LocalBackend, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        fails = any(f".{stage}." in each.topic for each in outputs) and failed.add() <= failures
        offsets = [] if fails and not after else await original(backend, outputs, commit)
        if fails:
            raise StorageError("the disk does not answer")
        return offsets

    monkeypatch.setattr(LocalBackend, "produce_and_commit", failing)
    monkeypatch.setattr(
        claimed_work, "Backoff", lambda retries, **_: Backoff(retries, first_s=0.0, longest_s=0.0)
    )


@pytest.mark.parametrize(("failures", "after"), [(COMMIT_RETRIES, False), (1, True)])
def test_a_commit_is_tried_again_until_it_takes_effect_once(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, failures: int, after: bool
) -> None:
    fail_commits(monkeypatch, "double", failures, after=after)
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(5), 5), Stage("double", operator, ONE_WORKER))
    assert run(workspace, job).outcome == "done"
    assert set(operator.seen.values()) == {1}
    assert results(workspace, job, "double") == [2 * n for n in range(5)]


def test_a_commit_that_fails_too_often_ends_the_run_and_loses_nothing(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_commits(monkeypatch, "double", COMMIT_RETRIES + 1, after=False)
    job = chain(TableSource(numbers(5), 5), Stage("double", FakeOperator(double), ONE_WORKER))
    with pytest.raises(StorageError, match="the disk does not answer"):
        run(workspace, job)
    assert run(workspace, job).outcome == "done"
    assert results(workspace, job, "double") == [2 * n for n in range(5)]


def test_no_row_is_to_blame_for_workers_that_are_lost_while_they_commit(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are lost before the message is processed alone, and three after."""
    commits, original = Count(), ClaimedWork._commit

    async def killed(work: ClaimedWork, *step: Any) -> bool:
        if commits.add() <= 5:
            raise Killed
        return await original(work, *step)

    monkeypatch.setattr(ClaimedWork, "_commit", killed)
    job = chain(TableSource(numbers(5), 5), Stage("double", FakeOperator(double), ONE_WORKER))
    assert run(workspace, job).stages["double"].deaths == 5
    assert results(workspace, job, "double") == [2 * n for n in range(5)]


def test_what_was_processed_before_a_message_failed_is_kept(workspace: hr.Workspace) -> None:
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(UNITS), 1), Stage("double", operator, ONE_WORKER))

    def fail_on_second(unit: str, rows: Sequence[int]) -> None:
        if len(operator.seen) == 2:
            raise ValueError("no such model")

    operator.before = fail_on_second
    with pytest.raises(UnitError, match="no such model"):
        run(workspace, job)
    first, second = operator.seen
    operator.before = lambda unit, rows: None
    assert run(workspace, job).outcome == "done"
    assert (operator.seen[first], operator.seen[second]) == (1, 2)
    assert results(workspace, job, "double") == [2 * n for n in range(UNITS)]


@pytest.mark.long
def test_rows_on_memory_stay_until_every_stage_that_reads_them_has(
    workspace: hr.Workspace,
) -> None:
    processed = Count()
    job = (
        Job("job")
        .add_stage(Stage("source", TableSource(numbers(UNITS), 1)))
        .add_stage(Stage("middle", FakeOperator(double), MEMORY), ["source"])
        .add_stage(Stage("fast", FakeOperator(same, before=processed.add), LOCAL), ["middle"])
        .add_stage(
            Stage(
                "slow",
                FakeOperator(same, before=lambda unit, rows: processed.wait_for(UNITS)),
                ONE_WORKER,
            ),
            ["middle"],
        )
    )
    assert run(workspace, job).outcome == "done"
    assert results(workspace, job, "slow") == [2 * n for n in range(UNITS)]
