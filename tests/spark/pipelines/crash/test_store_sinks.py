"""A pipeline whose sink is a store applies every batch once, although its driver is killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.testing.crash import Child
from tests.spark.crash.crashing_task import WAIT_S
from tests.spark.crash.death import Death
from tests.spark.crash.outputs import StoreKindName
from tests.spark.pipelines.crash.stored_job import (
    ROWS,
    ROWS_PER_BATCH,
    create_store,
    run_job,
    store_rows,
    stored_values,
)

DRIVER = """
from tests.spark.pipelines.crash.stored_job import DyingDriver
driver = DyingDriver(life, death)
"""
BATCHES = 3
"""The driver dies at the one of this number."""
OVERWRITTEN = -1


def case(kind: StoreKindName, death: Death, batches: int, *, deep: bool = False) -> Any:
    """Return a kind of store, a death, and how many batches the store holds then."""
    marks = [pytest.mark.deep] if deep else []
    return pytest.param(kind, death, batches, marks=marks, id=f"{kind}-{death.side}-{death.step}")


# proves G15
@pytest.mark.parametrize(
    ("kind", "death", "batches"),
    [
        case("timeseries", Death("commit", "after", BATCHES), BATCHES),
        case("vectors", Death("commit", "after", BATCHES), BATCHES, deep=True),
        case("timeseries", Death("commit", "before", BATCHES), BATCHES - 1, deep=True),
        case("vectors", Death("stage", "before", BATCHES), BATCHES - 1, deep=True),
    ],
)
def test_a_store_applies_each_batch_once(
    tmp_path: Path, spark: SparkSession, kind: StoreKindName, death: Death, batches: int
) -> None:
    """What the store holds at the kill is overwritten: a batch that came again would undo that."""
    store = tmp_path / "store"
    create_store(kind, store)
    with Child(DRIVER, life=tmp_path / "life", death=death) as driver:
        names = {"workspace": tmp_path / "workspace", "kind": kind, "store": store}
        driver.start("driver.run(workspace, kind, store)", **names)
        assert driver.wait(WAIT_S) == -signal.SIGKILL
    held = stored_values(kind, store)
    assert len(held) == batches * ROWS_PER_BATCH
    assert all(number == value for number, value in held.items())
    with hr.open_vectors(store) if kind == "vectors" else hr.open_timeseries(store) as opened:
        opened.write(store_rows(kind, list(held), [OVERWRITTEN] * len(held)))
    expected = {number: OVERWRITTEN if number in held else number for number in range(ROWS)}
    with hr.open(tmp_path / "workspace") as workspace:
        assert run_job(spark, workspace, kind, store) == "done"
        assert stored_values(kind, store) == expected
        assert run_job(spark, workspace, kind, store) == "done"
    assert stored_values(kind, store) == expected
