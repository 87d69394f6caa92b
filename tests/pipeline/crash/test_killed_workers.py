"""Worker processes that are killed at any moment."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from tests.kinds import seeds
from tests.pipeline.crash.process_runner import ProcessRunner
from tests.pipeline.jobs import numbers


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"] + 1}


def is_even(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(pc.bit_wise_and(batch["n"], 1), 0)


@pytest.mark.parametrize("seed", seeds(1, deep=20))
def test_killed_processes_lose_and_repeat_nothing(workspace: hr.Workspace, seed: int) -> None:
    pipeline = (
        hr.pipeline("numbers", workspace)
        .source(numbers(2000), rows_per_unit=5)
        .map(add_one, expensive=True, cost=1.0)
        .filter(is_even)
        .map(add_one, durable=True, name="last")
    )
    runner = ProcessRunner(kill_every_s=0.7, kills_max=6, seed=seed)
    assert pipeline.run(runner=runner).outcome == "done"
    assert sorted(pipeline.collect()["n"].to_pylist()) == list(range(3, 2003, 2))
    assert runner.kills
