"""An expensive call is claimed, made, recorded; what is recorded is never made again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import AccessError, BudgetError, RetryableError, UnitError
from headrace.pipeline.calls.call_results import CallResult, content_of
from headrace.pipeline.contract import Claimed, OperatorContext, UnitRows
from headrace.pipeline.operators.operator import Answer, current_call, operator_spec
from headrace.pipeline.operators.retries import Retries
from headrace.pipeline.rate_limit.state import RateLimitSpec
from tests.pipeline.memory_ledger import CountingLimit, MemoryLedger
from tests.pipeline.operator_runs import UNIT, process, rows_of

ROWS = [{"n": n} for n in range(10)]
AT_ONCE = Retries(attempts_max=3, first_s=0.0, longest_s=0.0)

made: list[tuple[int, str]] = []
"""The calls that the operators of this module made: row and key."""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    made.clear()


def pay(row: dict[str, Any]) -> dict[str, Any]:
    made.append((row["n"], current_call().idempotency_key))
    return {**row, "answer": f"answer to {row['n']}"}


def pay_but_for_three(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 3 and len(made) < 20:
        made.append((3, "-"))
        raise ValueError("three")
    return pay(row)


def test_each_row_is_a_call_with_a_key_and_a_cost() -> None:
    ledger = MemoryLedger()
    processed = process(
        operator_spec("map", pay, expensive=True, cost=0.25, concurrency=3), ROWS, ledger=ledger
    )
    assert (processed.calls, processed.reused, processed.cost) == (10, 0, 2.5)
    assert sorted(made) == [(n, f"captions@1/u1/{n}") for n in range(10)]
    assert ledger.costs == [0.25] * 10
    assert ledger.terms is not None
    assert (ledger.terms.cost, ledger.terms.in_doubt) == (0.25, "resend")


def test_what_is_recorded_is_never_called_again() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map", pay, expensive=True, cost=1.0)
    first = process(spec, ROWS, ledger=ledger)
    again = process(spec, ROWS, ledger=ledger)
    assert len(made) == 10
    assert rows_of(again) == rows_of(first)
    assert (again.calls, again.reused, again.cost) == (0, 10, 0.0)


def test_a_batch_is_a_call() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map_batches", lambda batch: batch, batch_size=4, expensive=True)
    assert process(spec, ROWS, ledger=ledger).calls == 3
    assert sorted(call for _, call in ledger.results) == [0, 1, 2]
    assert rows_of(process(spec, ROWS, ledger=ledger)) == ROWS


def test_results_beside_a_failure_are_recorded() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map", pay_but_for_three, expensive=True, concurrency=4)
    with pytest.raises(UnitError, match="row 3: ValueError: three"):
        process(spec, ROWS, ledger=ledger)
    assert {call for _, call in ledger.results} >= {0, 1, 2}
    assert ledger.doubted == [(UNIT, 3)], "nobody knows whether it was paid"
    paid = len(ledger.results)
    made.extend([(-1, "")] * 20)
    assert process(spec, ROWS, ledger=ledger).reused == paid


def test_a_failure_that_cost_nothing_is_not_in_doubt() -> None:
    def refuse(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 3:
            raise UnitError("the provider refused it", in_doubt=False)
        return row

    ledger = MemoryLedger()
    spec = operator_spec("map", refuse, expensive=True, on_error="dead_letter")
    processed = process(spec, ROWS, ledger=ledger)
    assert [(dead.row, dead.error) for dead in processed.dead] == [(3, "the provider refused it")]
    assert ledger.failed == {(UNIT, 3): "the provider refused it"}
    assert ledger.doubted == []


def in_doubt_once(row: dict[str, Any]) -> dict[str, Any]:
    made.append((row["n"], current_call().idempotency_key))
    if row["n"] == 3 and current_call().attempt == 1:
        raise RetryableError("no answer came", in_doubt=True)
    return row


@pytest.mark.long
def test_a_call_in_doubt_is_claimed_again_and_sent_with_the_same_key() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map", in_doubt_once, expensive=True, retries=AT_ONCE)
    assert rows_of(process(spec, ROWS, ledger=ledger)) == ROWS
    assert ledger.claims[UNIT, 3] == 2, "the ledger counts it"
    assert [key for n, key in made if n == 3] == ["captions@1/u1/3"] * 2


def test_a_call_in_doubt_is_held_if_the_stage_says_so() -> None:
    ledger = MemoryLedger()
    options: dict[str, Any] = {"expensive": True, "retries": AT_ONCE, "in_doubt": "hold"}
    with pytest.raises(UnitError, match="row 3: no answer came"):
        process(operator_spec("map", in_doubt_once, **options), ROWS, ledger=ledger)
    with pytest.raises(
        UnitError, match=r"row 3: the call captions@1/u1/3 is in doubt, and .* hold"
    ):
        process(operator_spec("map", in_doubt_once, **options), ROWS, ledger=ledger)
    spec = operator_spec("map", in_doubt_once, on_error="dead_letter", **options)
    processed = process(spec, ROWS, ledger=ledger)
    assert [dead.row for dead in processed.dead] == [3]
    assert [n for n, _ in made].count(3) == 1, "it was sent once, in all three runs"


class RacingLedger(MemoryLedger):
    """Another owner records each call that is in doubt before it is claimed again."""

    async def claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], *, owner: str
    ) -> list[Claimed]:
        for number, _ in calls:
            if (unit, number) in self.claims:
                theirs = pa.table({"n": [-1] * 5})
                self.results[unit, number] = CallResult(theirs).encode([number])
        return await super().claim(stage, unit, calls, owner=owner)


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_a_result_that_another_owner_recorded_meanwhile_counts(on_error: Any) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise RetryableError("no answer came", in_doubt=True)

    spec = operator_spec(
        "map_batches", fail, batch_size=5, expensive=True, retries=AT_ONCE, on_error=on_error
    )
    processed = process(spec, ROWS, ledger=RacingLedger())
    assert rows_of(processed) == [{"n": -1}] * 10
    assert processed.reused == 2
    assert list(processed.dead) == []


def test_a_spent_budget_stops_the_unit_and_keeps_what_was_paid() -> None:
    ledger = MemoryLedger(claims_max=5)
    spec = operator_spec("map", pay, expensive=True)
    with pytest.raises(BudgetError):
        process(spec, ROWS, ledger=ledger)
    ledger.claims_max = 100
    assert process(spec, ROWS, ledger=ledger).reused == 5


async def fail_early(row: dict[str, Any]) -> dict[str, Any]:
    made.append((row["n"], current_call().idempotency_key))
    if row["n"] == 2:
        raise UnitError("a bad row")
    return row


def test_a_unit_that_fails_gives_back_what_it_claimed_ahead() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map", fail_early, expensive=True, concurrency=4)
    with pytest.raises(UnitError, match="row 2: a bad row"):
        process(spec, [{"n": n} for n in range(1000)], ledger=ledger)
    assert len(made) < 100
    assert {call for _, call in ledger.claims} <= {n for n, _ in made}


def test_an_error_that_no_row_is_to_blame_for_is_not_a_dead_letter() -> None:
    def refuse(row: dict[str, Any]) -> dict[str, Any]:
        raise AccessError("wrong key", do="set it")

    spec = operator_spec("map", refuse, expensive=True, on_error="dead_letter")
    ledger = MemoryLedger()
    with pytest.raises(AccessError, match="stage 'captions': wrong key; set it"):
        process(spec, ROWS, ledger=ledger)
    assert ledger.doubted == []


def infer(batch: pa.RecordBatch) -> pa.RecordBatch:
    made.append((batch.num_rows, ""))
    if 3 in batch["n"].to_pylist():
        raise ValueError("corrupt image")
    return batch


def test_a_batch_of_which_one_row_fails_is_recorded_with_that_failure() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map_batches", infer, batch_size=5, expensive=True, on_error="dead_letter")
    first = process(spec, ROWS, ledger=ledger)
    calls = len(made)
    assert calls == 2 + 5
    again = process(spec, ROWS, ledger=ledger)
    assert len(made) == calls
    for processed in (first, again):
        assert [row["n"] for row in rows_of(processed)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert list(processed.dead) == [(3, "ValueError: corrupt image", 1)]


@pytest.mark.parametrize("kind", ["map", "map_batches"])
def test_a_cost_is_a_function_of_the_answer(kind: Any) -> None:
    def cost(answer: Any) -> float:
        return float(answer["n"] if isinstance(answer, dict) else answer["n"].to_pylist()[0])

    spec = operator_spec(kind, lambda rows: rows, batch_size=1, expensive=True, cost=cost)
    assert process(spec, ROWS, ledger=MemoryLedger()).cost == sum(range(10))


def test_an_answer_brings_its_own_cost() -> None:
    spec = operator_spec("map", lambda row: Answer(row, cost=0.5), expensive=True, cost=9.0)
    processed = process(spec, ROWS, ledger=MemoryLedger())
    assert processed.cost == 5.0
    assert rows_of(processed) == ROWS


def test_a_cost_function_that_fails_does_not_lose_the_result() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map", pay, expensive=True, cost=lambda row: row["price"])
    with pytest.raises(Exception, match="the cost function failed: KeyError: 'price'"):
        process(spec, ROWS[:1], ledger=ledger)
    assert len(ledger.results) == 1


def test_the_rate_limit_is_asked_before_each_attempt_and_hears_of_pauses() -> None:
    class Tokens:
        def expected_tokens(self, batch: pa.RecordBatch) -> int:
            return 10

        async def process(self, batch: pa.RecordBatch) -> Answer:
            if current_call().attempt == 1 and batch["n"][0].as_py() == 1:
                raise RetryableError("slow down", retry_after_s=0.01)
            return Answer(batch, tokens=13)

    limit = CountingLimit()
    spec = operator_spec(
        "map_batches",
        Tokens(),
        batch_size=1,
        rate_limit=RateLimitSpec(name="provider"),
        retries=AT_ONCE,
    )
    process(spec, ROWS[:3], rate_limit=limit)
    assert [tokens for _, _, tokens in limit.acquired] == [10, 13, 10, 13], "a debt is paid once"
    assert limit.penalties == [("provider", 0.01)]


def test_a_pause_that_is_too_long_to_wait_for_holds_nobody_else_back() -> None:
    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        raise RetryableError("come back tomorrow", retry_after_s=86_400)

    limit = CountingLimit()
    spec = operator_spec("map", ask, rate_limit=RateLimitSpec(name="provider"))
    with pytest.raises(UnitError, match="come back tomorrow"):
        process(spec, ROWS[:1], rate_limit=limit)
    assert limit.penalties == []


def test_equal_rows_have_equal_contents() -> None:
    table = pa.table({"a": ["x", None, "y", "x"], "l": [[1], None, [1, 2], [1]]})
    contents = [content_of(table.slice(n, 1).to_batches()[0]) for n in range(4)]
    assert contents[0] == contents[3]
    assert len(set(contents)) == 3
    alone = pa.RecordBatch.from_pylist([{"a": "x", "l": [1]}])
    assert content_of(alone) == contents[0]
    retyped = pa.table({"a": pa.array(["x"], pa.large_string()), "l": [[1]]})
    assert content_of(retyped.to_batches()[0]) != contents[0]


async def hang(row: dict[str, Any]) -> dict[str, Any]:
    made.append((row["n"], ""))
    if row["n"] == 3:
        await asyncio.Event().wait()
    return row


def test_a_unit_that_is_cancelled_keeps_what_was_recorded() -> None:
    ledger = MemoryLedger()
    spec = operator_spec("map", hang, expensive=True)

    async def cancelled() -> None:
        operator = await spec.open(OperatorContext("captions", "w", ledger=ledger))
        unit = UnitRows(UNIT, pa.Table.from_pylist(ROWS))
        task = asyncio.create_task(operator.process(unit))
        while (3, "") not in made:
            await asyncio.wait([task], timeout=0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await operator.close()

    asyncio.run(cancelled())
    assert {call for _, call in ledger.results} == {0, 1, 2}
