"""Pipelines as users write them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ExistsError, NotFoundError, UnitError, UsageError
from headrace.pipeline.run.job_run import JobRun
from tests.pipeline.jobs import numbers


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"] + 1}


def is_even(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(pc.bit_wise_and(batch["n"], 1), 0)


class Double:
    def setup(self) -> None:
        self.factor = 2

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": pc.multiply(batch["n"], self.factor)})


class Store:
    """A sink that keeps what it gets under its key."""

    def __init__(self) -> None:
        self.kept: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def write(self, table: pa.Table, key: str) -> None:
        with self._lock:
            assert self.kept.setdefault(key, table["n"].to_pylist()) == table["n"].to_pylist()

    @property
    def rows(self) -> list[int]:
        return sorted(n for rows in self.kept.values() for n in rows)


def test_a_pipeline_from_files_to_a_function(workspace: hr.Workspace, tmp_path: Path) -> None:
    for n in range(3):
        pq.write_table(numbers(100, 100 * n), tmp_path / f"{n}.parquet")
    store = Store()
    pipeline = (
        hr.pipeline("numbers", workspace)
        .source(str(tmp_path / "*.parquet"), rows_per_unit=40)
        .map(add_one)
        .map_batches(Double, workers=2, expensive=True, cost=0.5, batch_size=10)
        .filter(is_even)
        .sink(store.write, version="1")
    )
    plan = pipeline.plan()
    assert (plan.units, plan.rows, plan.is_new) == (9, 300, True)
    assert [(each.stage, each.is_durable) for each in plan.stages] == [
        ("add_one", False),
        ("Double", True),
        ("is_even", False),
        ("sink", True),
    ]
    assert plan.stages[1].cost_max == 15.0
    summary = pipeline.run()
    assert summary.outcome == "done"
    assert store.rows == [2 * (n + 1) for n in range(300)]
    assert pipeline.plan().stages[1].calls_recorded == summary.stages["Double"].calls > 0
    status = pipeline.status()
    assert (status.outcome, status.stages["sink"].rows_in) == ("done", 300)


def test_results_of_the_last_stage_are_collected(workspace: hr.Workspace) -> None:
    pipeline = hr.pipeline("numbers", workspace).source(numbers(10)).map(add_one).filter(is_even)
    pipeline.run()
    assert sorted(pipeline.collect()["n"].to_pylist()) == [2, 4, 6, 8, 10]


def test_a_collection_is_read_as_it_is_when_the_job_begins(workspace: hr.Workspace) -> None:
    collection = workspace.collection("numbers", "n long", key="n", journals=3)
    workspace.append(collection, [{"n": n} for n in range(50)])
    pipeline = hr.pipeline("read", workspace).source(collection).map(add_one)
    pipeline.run()
    workspace.append(collection, [{"n": 1000}])
    pipeline.run()
    assert sorted(pipeline.collect()["n"].to_pylist()) == list(range(1, 51))


def test_a_job_name_in_use_is_refused(workspace: hr.Workspace) -> None:
    pipeline = hr.pipeline("numbers", workspace).source(numbers(1)).map(add_one)
    with JobRun(workspace, pipeline.job):
        assert pipeline.status().outcome == "running"
        with pytest.raises(ExistsError, match="job 'numbers' is already running"):
            pipeline.run()
    pipeline.run()


def test_what_cannot_run_is_refused(workspace: hr.Workspace) -> None:
    begun = hr.pipeline("numbers", workspace)
    with pytest.raises(UsageError, match="begins with stage 'add_one'; call source first"):
        begun.map(add_one)
    with pytest.raises(UsageError, match="has no stage but sources"):
        begun.source(numbers(1)).run()
    with pytest.raises(UsageError, match="a set is no source"):
        hr.pipeline("other", workspace).source({1})
    with pytest.raises(UsageError, match="durable is False"):
        begun.map(add_one, expensive=True, durable=False)
    with pytest.raises(UsageError, match="workers must be at least 1"):
        begun.map(add_one, workers=0).run()
    with pytest.raises(NotFoundError, match="has never run"):
        begun.status()


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (ValueError("two\nlines"), "stage 'sink': ValueError: two lines; mend"),
        (StopIteration(), "stage 'sink': RuntimeError: the function raised StopIteration; "),
    ],
)
def test_a_function_that_fails_as_a_sink_ends_the_run_with_one_line(
    workspace: hr.Workspace, failure: Exception, text: str
) -> None:
    def fail(table: pa.Table, key: str) -> None:
        raise failure

    with pytest.raises(UnitError) as raised:
        hr.pipeline("p", workspace).source(numbers(3)).sink(fail, version="1").run()
    assert str(raised.value).startswith(text)
    assert "\n" not in str(raised.value)
