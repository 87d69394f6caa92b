"""Rows with equal values are paid for once, if the stage asks for it."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.pipeline.dead_letters import DeadLetters
from headrace.pipeline.run.job_run import run_async
from headrace.queues.local_backend import LocalBackend

made: Counter[int] = Counter()
"""How often a call was made for each value."""
_lock = threading.Lock()


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    made.clear()


def pay(row: dict[str, Any]) -> dict[str, Any]:
    with _lock:
        made[row["n"]] += 1
    return {"n": row["n"], "answer": f"answer to {row['n']}"}


def values(*rows: int) -> pa.Table:
    return pa.table({"n": pa.array(rows, pa.int64())})


def paid(
    workspace: hr.Workspace, table: pa.Table, version: str = "1", **options: Any
) -> hr.Pipeline:
    pipeline = hr.pipeline("paid", workspace).source(table, rows_per_unit=3)
    settings = {"expensive": True, "cost": 1.0, "reuse_equal": True, **options}
    return pipeline.map(pay, name="pay", version=version, **settings)


# proves G17
@pytest.mark.long
def test_equal_rows_of_all_units_and_workers_are_paid_once(workspace: hr.Workspace) -> None:
    """All units begin with the same row, so workers want the same call at the same time."""
    table = values(*[value for n in range(20) for value in (7, n % 4, 8)])
    pipeline = paid(workspace, table, workers=4, concurrency=2)
    summary = pipeline.run()
    assert summary.outcome == "done"
    assert made == dict.fromkeys((0, 1, 2, 3, 7, 8), 1)
    assert summary.cost_in_all == 6
    found = pipeline.collect()
    assert sorted(found["n"].to_pylist()) == sorted(table["n"].to_pylist())
    assert found["answer"].to_pylist() == [f"answer to {n}" for n in found["n"].to_pylist()]


def test_without_asking_for_it_every_row_is_paid(workspace: hr.Workspace) -> None:
    paid(workspace, values(7, 7, 7, 7, 7), reuse_equal=False).run()
    assert made == {7: 5}


@pytest.mark.long
def test_rows_that_a_changed_source_still_has_are_not_paid_again(
    workspace: hr.Workspace,
) -> None:
    paid(workspace, values(1, 2, 3)).run()
    again = paid(workspace, values(5, 3, 2, 1, 1, 5))
    assert again.run(on_change="recompute").outcome == "done"
    assert made == {1: 1, 2: 1, 3: 1, 5: 1}
    assert sorted(again.collect()["n"].to_pylist()) == [1, 1, 2, 3, 5, 5]


@pytest.mark.parametrize("on_change", ["restart", "recompute"])
def test_another_operator_and_a_restart_pay_again(workspace: hr.Workspace, on_change: Any) -> None:
    paid(workspace, values(1, 2, 2)).run()
    assert paid(workspace, values(1, 2, 2), version="2").run(on_change=on_change).cost == 2
    assert made == {1: 2, 2: 2}


def pay_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.to_pylist()
    if any(row["n"] < 0 for row in rows):
        raise ValueError("negative")
    return batch


# proves G17
def test_an_equal_batch_gives_up_its_own_rows(workspace: hr.Workspace) -> None:
    """A recorded result says which rows of its call failed, and equal calls have other rows."""
    table = values(1, -2, 3, 1, -2, 3, 1, -2, 3)
    pipeline = (
        hr.pipeline("paid", workspace)
        .source(table, rows_per_unit=6)
        .map_batches(
            pay_batch,
            name="pay",
            batch_size=3,
            expensive=True,
            reuse_equal=True,
            on_error="dead_letter",
            retries=0,
        )
    )
    pipeline.run()
    assert sorted(pipeline.collect()["n"].to_pylist()) == [1, 1, 1, 3, 3, 3]

    async def find() -> list[tuple[str, int, int]]:
        async with LocalBackend(workspace) as backend:
            dead = DeadLetters(workspace, "paid", backend)
            letters = await dead.find()
            rows = dead.rows(letters)
            return sorted(
                (each.unit, each.row, row["n"]) for each, row in zip(letters, rows, strict=True)
            )

    found = run_async(find())
    assert [(row, n) for _, row, n in found] == [(1, -2), (4, -2), (1, -2)]
    assert len({(unit, row) for unit, row, _ in found}) == 3


def name_of(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"name": [f"{name}" for name in batch["name"].to_pylist()]})


@pytest.mark.parametrize("is_nested", [False, True])
def test_dictionaries_are_equal_if_their_values_are(
    workspace: hr.Workspace, is_nested: bool, tmp_path: Path
) -> None:
    """Each file has a dictionary of its own, in which every value has the same place."""
    names = ["ant", "bee", "cat", "ant"]
    for number, name in enumerate(names):
        encoded = pa.array([name]).dictionary_encode()
        column = pa.StructArray.from_arrays([encoded], ["of"]) if is_nested else encoded
        pq.write_table(pa.table({"name": column}), tmp_path / f"{number}.parquet")
    pipeline = hr.pipeline("names", workspace).source(tmp_path / "*.parquet")
    pipeline = pipeline.map_batches(name_of, expensive=True, cost=1.0, reuse_equal=True)
    assert pipeline.run().cost_in_all == 3
    expected = [f"{{'of': '{name}'}}" if is_nested else name for name in sorted(names)]
    assert sorted(pipeline.collect()["name"].to_pylist()) == expected
