"""Worker processes that are killed at any moment."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from tests.kinds import seeds
from tests.pipeline.crash.process_runner import ProcessRunner
from tests.pipeline.jobs import numbers

ROWS = 100_000


def add_one(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"n": pc.add(batch["n"], 1)})


def is_even(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(pc.bit_wise_and(batch["n"], 1), 0)


# proves G15, G17
@pytest.mark.parametrize("seed", seeds(1, deep=10))
def test_random_worker_kills(workspace: hr.Workspace, seed: int) -> None:
    """Workers of an expensive stage, of one on memory and of a durable one; the seed says which."""
    print(f"seed {seed}")
    pipeline = (
        hr.pipeline("numbers", workspace)
        .source(numbers(ROWS), rows_per_unit=500)
        .map_batches(add_one, batch_size=250, expensive=True, cost=1.0)
        .filter(is_even)
        .map_batches(add_one, durable=True, name="last")
    )
    runner = ProcessRunner(kill_every_s=0.7, kills_max=6, seed=seed)
    summary = pipeline.run(runner=runner)
    assert summary.outcome == "done"
    assert Counter(pipeline.collect()["n"].to_pylist()) == Counter(range(3, ROWS + 3, 2))
    assert runner.kills
    assert summary.cost_in_all == ROWS / 250, "one result a call"


def die_at_seven(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


# proves G15
def test_a_row_that_kills_every_process_is_isolated(workspace: hr.Workspace) -> None:
    """It becomes a dead letter, and all rows beside it in its unit are there."""
    pipeline = (
        hr.pipeline("poison", workspace)
        .source(numbers(12), rows_per_unit=4)
        .map(die_at_seven, on_error="dead_letter", name="deadly")
    )
    summary = pipeline.run(runner=ProcessRunner())
    assert (summary.outcome, summary.stages["deadly"].dead) == ("done", 1)
    assert summary.stages["deadly"].deaths > 1
    assert sorted(pipeline.collect()["n"].to_pylist()) == [n for n in range(12) if n != 7]
