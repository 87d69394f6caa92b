"""Budgets of stages and jobs, seen through runs that pause and go on."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.pipeline.job import Job
from headrace.pipeline.ledger.ledger_store import LedgerStore
from headrace.pipeline.operators.operator import Answer
from headrace.pipeline.run.record import Records
from tests.pipeline.jobs import numbers

ROWS = 40

made: Counter[tuple[str, int]] = Counter()
"""How often each paid call was made, by stage and row."""
_lock = threading.Lock()


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    made.clear()


def pay(row: dict[str, Any]) -> dict[str, Any]:
    with _lock:
        made["pay", row["n"]] += 1
    return row


def pay_more(row: dict[str, Any]) -> dict[str, Any]:
    with _lock:
        made["pay_more", row["n"]] += 1
    return row


def pay_by_answer(row: dict[str, Any]) -> Answer:
    return Answer(pay(row), cost=1.0 if row["n"] % 4 else 3.0)


def bill(prices: dict[str, float]) -> float:
    return sum(prices[stage] * count for (stage, _), count in made.items())


def test_the_budget_of_a_stage_pauses_and_a_larger_one_resumes(workspace: hr.Workspace) -> None:
    def make(budget: float) -> hr.Pipeline:
        pipeline = hr.pipeline("paid", workspace).source(numbers(ROWS), rows_per_unit=5)
        return pipeline.map(pay, expensive=True, cost=1.0, budget=budget, workers=2, version="1")

    first = make(12).run()
    assert first.outcome == "paused"
    assert str(first).startswith("paused: the stage's budget of 12 is spent at stage 'pay': 12 is")
    assert (first.cost, first.cost_in_all) == (12.0, 12.0)
    assert len(made) == 12, "the budget is spent to its last call"
    second = make(100).run()
    assert (second.outcome, str(second)) == ("done", "done")
    assert (second.cost, second.cost_in_all) == (28.0, 40.0)
    assert set(made.values()) == {1}
    assert sorted(make(100).collect()["n"].to_pylist()) == list(range(ROWS))
    assert make(100).plan().stages[0].calls_recorded == ROWS


# proves G17
@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 3])
def test_the_budget_of_a_job_limits_all_its_stages(workspace: hr.Workspace, workers: int) -> None:
    def make(budget: float | None) -> hr.Pipeline:
        return (
            hr.pipeline("paid", workspace, budget=budget)
            .source(numbers(ROWS), rows_per_unit=5)
            .map(pay, expensive=True, cost=0.1, workers=workers, concurrency=2, version="1")
            .map(pay_more, expensive=True, cost=0.25, workers=workers, version="1")
        )

    prices = {"pay": 0.1, "pay_more": 0.25}
    spent = 0.0
    for budget in (1.0, 1.0, 4.7, 9.0):
        summary = make(budget).run()
        assert summary.outcome == "paused"
        assert f"the job's budget of {budget:g} is spent at stage" in str(summary)
        assert bill(prices) == pytest.approx(summary.cost_in_all)
        assert summary.cost == pytest.approx(summary.cost_in_all - spent)
        assert budget - 0.25 < summary.cost_in_all <= budget
        spent = summary.cost_in_all
    last = make(None).run()
    assert last.outcome == "done"
    assert last.cost_in_all == pytest.approx(ROWS * 0.35)
    assert set(made.values()) == {1}
    assert sorted(make(None).collect()["n"].to_pylist()) == list(range(ROWS))


def test_a_budget_of_zero_pays_nothing_and_says_so(workspace: hr.Workspace) -> None:
    def make(budget: float) -> hr.Pipeline:
        pipeline = hr.pipeline("paid", workspace, budget=budget).source(numbers(ROWS))
        return pipeline.map(pay_by_answer, expensive=True, concurrency=4, version="1")

    summary = make(0).run()
    assert summary.outcome == "paused"
    assert "the job's budget of 0 is spent at stage 'pay_by_answer': 0 is paid" in str(summary)
    assert not made
    assert make(1000).run().outcome == "done"


def test_an_answer_may_exceed_the_budget_by_the_calls_in_flight(workspace: hr.Workspace) -> None:
    def make(budget: float) -> hr.Pipeline:
        pipeline = hr.pipeline("paid", workspace, budget=budget).source(numbers(ROWS))
        return pipeline.map(pay_by_answer, expensive=True, concurrency=4, version="1")

    summary = make(20).run()
    assert summary.outcome == "paused"
    paid = sum(1.0 if row % 4 else 3.0 for _, row in made)
    assert summary.cost_in_all == paid
    assert 20 - 3 < paid <= 20 + 4 * 3, "four calls were in flight"
    assert make(10).run().cost == 0, "a smaller budget pays for nothing more"
    assert make(1000).run().cost_in_all == ROWS + 2 * ROWS / 4
    assert set(made.values()) == {1}


def test_what_cannot_be_a_budget_is_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(UsageError, match="the budget of job 'paid' must be a number from 0 on"):
        hr.pipeline("paid", workspace, budget=-1)
    with pytest.raises(UsageError, match="the budget of job 'paid' must be a number from 0 on"):
        Job("paid", budget=float("nan"))
    free = hr.pipeline("paid", workspace, budget=1).source(numbers(1)).map(pay)
    with pytest.raises(UsageError, match="has a budget, and none of its stages is expensive"):
        free.run()
    with pytest.raises(UsageError, match="a stage has a budget of 3, and its calls are not"):
        hr.pipeline("paid", workspace).source(numbers(1)).map(pay, budget=3)


@pytest.mark.long
def test_a_restart_forgets_what_was_spent_and_a_forgotten_generation_is_gone(
    workspace: hr.Workspace,
) -> None:
    def make(version: str) -> hr.Pipeline:
        pipeline = hr.pipeline("paid", workspace, budget=ROWS).source(numbers(ROWS))
        return pipeline.map(pay, expensive=True, cost=1.0, version=version)

    first = make("1").run()
    record = Records(workspace.objects, "paid").newest()
    assert record is not None
    second = make("2").run(on_change="restart")
    assert (first.outcome, second.outcome) == ("done", "done")
    assert second.cost_in_all == ROWS, "the budget of a run from scratch is unspent"
    assert set(made.values()) == {2}

    assert workspace.directory is not None
    path = workspace.directory / "pipelines" / "paid" / "ledger"
    store = LedgerStore(path, record.generation)
    assert store.load()[1]
    store.forget_generation()
    assert store.load() == ([], {})
    store.close()
    again = make("2").run()
    assert (again.cost, again.cost_in_all) == (0.0, ROWS), "the other generation is untouched"
