"""Rows that failed are kept, listed, and processed again; nothing is lost and nothing is twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import headrace as hr
from headrace.errors import ExistsError, FencedError, NotFoundError
from headrace.pipeline.dead_letters import REPLAYED, DeadLetter, DeadLetters
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.operators.http import HttpOperator
from headrace.pipeline.operators.operator import OperatorSpec, operator_spec
from headrace.pipeline.operators.retries import Retries
from headrace.pipeline.run.record import JobLock
from headrace.pipeline.source.sources import TableSource
from headrace.queues.local_backend import LocalBackend
from headrace.testing.paid_server import PaidServer
from tests.pipeline.jobs import LOCAL, MEMORY, chain, numbers, results, run
from tests.pipeline.test_lost_workers import kill_once

T = TypeVar("T")

ONE_WORKER = StageConfig(workers=1)

mended: set[int] = set()
"""Rows that no longer fail."""


@pytest.fixture(autouse=True)
def nothing_is_mended() -> None:
    mended.clear()


def fail_on_tens(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] % 10 == 0 and row["n"] not in mended:
        raise ValueError(f"bad {row['n']}")
    return row


def keep(row: dict[str, Any]) -> dict[str, Any]:
    return row


def failing(**options: Any) -> OperatorSpec:
    # `mended` belongs to the source of the function: without a version it would have changed.
    return operator_spec("map", fail_on_tens, on_error="dead_letter", version="1", **options)


def use(workspace: hr.Workspace, job: Job, use: Callable[[DeadLetters], Awaitable[T]]) -> T:
    async def in_loop() -> T:
        async with LocalBackend(workspace) as backend:
            return await use(DeadLetters(workspace, job.id, backend))

    return asyncio.run(in_loop())


def letters(workspace: hr.Workspace, job: Job, stage: str | None = None) -> list[DeadLetter]:
    return use(workspace, job, lambda dead: dead.find(stage))


def replay(workspace: hr.Workspace, job: Job) -> int:
    return use(workspace, job, lambda dead: dead.replay())


# proves G18
def test_a_failed_row_is_kept_with_its_error(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(50), rows_per_unit=5), Stage("check", failing(), LOCAL))
    summary = run(workspace, job)
    assert (summary.stages["check"].dead, str(summary)) == (5, "done, 5 dead letters")
    found = letters(workspace, job)
    assert {letter.error for letter in found} == {f"ValueError: bad {n}" for n in range(0, 50, 10)}
    assert {(letter.stage, letter.row, letter.attempts) for letter in found} == {("check", 0, 1)}

    async def rows(dead: DeadLetters) -> Any:
        return dead.rows(await dead.find("check"))

    assert sorted(row["n"] for row in use(workspace, job, rows)) == list(range(0, 50, 10))
    assert results(workspace, job, "check") == [n for n in range(50) if n % 10]


# proves G18
@pytest.mark.parametrize("is_committed", [False, True])
def test_every_row_is_in_the_output_or_a_dead_letter_once_though_a_worker_is_killed(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """It is killed just before or just after it commits a unit with a row that failed."""
    deaths = kill_once(monkeypatch, "_commit", after=is_committed)
    job = chain(TableSource(numbers(50), rows_per_unit=10), Stage("check", failing(), LOCAL))
    run(workspace, job)
    assert deaths
    kept = [
        int(letter.error.removeprefix("ValueError: bad ")) for letter in letters(workspace, job)
    ]
    assert sorted(kept) == list(range(0, 50, 10))
    assert results(workspace, job, "check") == [n for n in range(50) if n % 10]


# proves G18
@pytest.mark.long
def test_a_replayed_row_is_processed_once_by_its_stage_and_those_below(
    workspace: hr.Workspace,
) -> None:
    job = chain(
        TableSource(numbers(50), rows_per_unit=5),
        Stage("check", failing(), LOCAL),
        Stage("last", operator_spec("map", keep), LOCAL),
    )
    run(workspace, job)
    mended.update({10, 20})
    assert replay(workspace, job) == 5
    assert letters(workspace, job) == [], "they are on their way"
    summary = run(workspace, job)
    assert summary.stages["check"].rows_in == 5
    assert summary.stages["last"].rows_in == 2
    assert sorted(letter.error for letter in letters(workspace, job)) == [
        "ValueError: bad 0",
        "ValueError: bad 30",
        "ValueError: bad 40",
    ]
    mended.update({0, 30, 40})
    assert replay(workspace, job) == 3
    run(workspace, job)
    assert letters(workspace, job) == []
    assert replay(workspace, job) == 0
    assert results(workspace, job, "last") == list(range(50))


@pytest.mark.long
def test_a_replay_reaches_its_stage_alone_also_through_memory(workspace: hr.Workspace) -> None:
    """Two paths lead from the source to the stage, and another stage reads the source too."""
    job = Job("diamond").add_stage(Stage("source", TableSource(numbers(40), rows_per_unit=4)))
    job.add_stage(Stage("left", operator_spec("map", keep), MEMORY), ["source"])
    job.add_stage(Stage("right", operator_spec("map", keep), MEMORY), ["source"])
    job.add_stage(Stage("check", failing(), LOCAL), ["left", "right", "source"])
    job.add_stage(Stage("other", operator_spec("map", keep), LOCAL), ["source"])
    run(workspace, job)
    assert len(letters(workspace, job, "check")) == 3 * 4
    mended.update(range(40))
    assert replay(workspace, job) == 12
    run(workspace, job)
    assert letters(workspace, job) == []
    assert results(workspace, job, "check") == sorted([*range(40)] * 3)
    assert results(workspace, job, "other") == list(range(40))


# proves G18
def test_a_second_replay_at_the_same_time_is_refused(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(10)), Stage("check", failing(), ONE_WORKER))
    run(workspace, job)

    async def race(dead: DeadLetters) -> None:
        ((_, topic, partitions),) = await dead._topics("check")
        for partition in range(partitions):
            step = [found async for found in dead._letters(topic, partition)]
            if step:
                await dead._replay_step(topic, partition, step)
                async with LocalBackend(workspace) as other:
                    committed = await other.get_committed_offset(
                        REPLAYED, topic, partition=partition
                    )
                assert committed == step[-1][0] + 1
                stale = DeadLetters(workspace, job.id, _Stale(dead._backend))  # type: ignore[arg-type]
                with pytest.raises(FencedError):
                    await stale._replay_step(topic, partition, step)

    use(workspace, job, race)
    mended.update(range(10))
    run(workspace, job)
    assert results(workspace, job, "check") == list(range(10))


class _Stale:
    """A backend whose caller read the committed offset before another replay moved it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    async def get_committed_offset(self, *given: Any, **named: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_a_running_job_is_not_replayed(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(10)), Stage("check", failing(), ONE_WORKER))
    run(workspace, job)
    with JobLock(workspace, job.id), pytest.raises(ExistsError, match="already running"):
        replay(workspace, job)


def test_names_that_do_not_exist_are_said(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(10)), Stage("check", failing(), ONE_WORKER))
    with pytest.raises(NotFoundError, match="there is no job 'job'"):
        letters(workspace, job)
    run(workspace, job)
    with pytest.raises(NotFoundError, match="has no stage 'chek'"):
        letters(workspace, job, "chek")


# proves G17, G18
@pytest.mark.long
def test_a_replayed_call_in_doubt_keeps_its_key(workspace: hr.Workspace, tmp_path: Path) -> None:
    """It was paid, its answer was lost: the replay is not paid again."""
    with PaidServer(tmp_path / "bill", "--honour-keys") as server:
        server.ask_faults("", "", "500_after", "500_after")
        operator = HttpOperator(
            f"{server.url}/pay",
            json=lambda row: {"id": str(row["n"])},
            parse=lambda answer: {"answer": answer["answer"]},
        )
        spec = operator_spec(
            "map", operator, on_error="dead_letter", concurrency=1, retries=Retries(attempts_max=2)
        )
        job = chain(TableSource(numbers(8), rows_per_unit=8), Stage("pay", spec, ONE_WORKER))
        run(workspace, job)
        (letter,) = letters(workspace, job)
        assert (letter.row, letter.attempts) == (2, 2)
        replay(workspace, job)
        run(workspace, job)
        assert letters(workspace, job) == []
        assert results(workspace, job, "pay") == list(range(8))
        assert server.paid() == {str(n): 1 for n in range(8)}
