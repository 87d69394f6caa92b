"""Queries on a real Spark: the same rows as in threads, tasks that are tried again, and a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import StoppedError, UnitError, UsageError
from headrace.plan.plan_run import PlanRun
from headrace.spark.plan_runner import PlanRunner
from headrace.testing.crash import eventually
from tests.pipeline.jobs import numbers

ROWS = 1_000
PATIENCE_S = 60.0


def by_remainder(
    workspace: hr.Workspace, function: Callable[..., Any], rows: int = ROWS
) -> hr.Query:
    return (
        hr.scan(numbers(rows), workspace, rows_per_unit=100)
        .map(function, version="1")
        .group_by("key", partitions=4)
        .agg(n="count", total=("n", "sum"))
    )


def with_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = pc.subtract(batch["n"], pc.multiply(pc.divide(batch["n"], 7), 7))
    return batch.append_column("key", keys)


def expected(rows: int = ROWS) -> list[dict[str, int]]:
    values = {key: [n for n in range(rows) if n % 7 == key] for key in range(7)}
    return [{"key": key, "n": len(each), "total": sum(each)} for key, each in values.items()]


def rows_of(run: PlanRun) -> list[dict[str, int]]:
    found: list[dict[str, int]] = run.table().sort_by("key").to_pylist()
    return found


def test_a_query_has_the_rows_that_threads_compute(
    workspace: hr.Workspace, spark: SparkSession
) -> None:
    query = by_remainder(workspace, with_key)
    on_spark = query.run("on spark", spark)
    assert rows_of(on_spark) == rows_of(query.run("in threads")) == expected()
    assert (on_spark.reports[0].tasks, on_spark.reports[0].computed) == (10, 10)
    # What Spark computed is found by threads, and the other way round.
    assert query.run("on spark").reports[0].reused == 10
    assert query.run("in threads", spark).reports[0].reused == 10


# proves G19
def test_a_task_that_fails_is_tried_again_and_its_output_is_there_once(
    workspace: hr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"

    def fail_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        tried = tries / str(batch["n"][0])
        if not tried.exists():
            tried.mkdir(parents=True)
            raise OSError("the network is down")
        return with_key(batch)

    run = by_remainder(workspace, fail_once).run("retried", _retrying(spark))
    assert rows_of(run) == expected()
    assert len(list(tries.iterdir())) == 10


def _retrying(spark: SparkSession) -> SparkSession:
    master = spark.sparkContext.master or ""
    if master.startswith("local") and "," not in master:
        pytest.skip("this Spark tries a task once")
    return spark


def test_a_function_that_fails_ends_the_query_with_its_error(
    workspace: hr.Workspace, spark: SparkSession
) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such word")

    with pytest.raises(UnitError, match=r"Map\(fail\): ValueError: no such word"):
        by_remainder(workspace, fail).run("failing", spark)


def test_a_stop_cancels_tasks_and_keeps_what_is_published(
    workspace: hr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "begun").mkdir()

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch["n"][0].as_py()
        (tmp_path / "begun" / str(first)).touch()
        if first >= 500:
            eventually((tmp_path / "go").exists, PATIENCE_S, "the go")
        return with_key(batch)

    query = by_remainder(workspace, wait)
    stopping = threading.Event()
    runner = PlanRunner(spark, stopping.is_set)
    run = PlanRun("stopped", query.stages, workspace.objects, runner)
    failures: list[Exception] = []

    def run_and_keep() -> None:
        try:
            run.run()
        except StoppedError as error:
            failures.append(error)

    thread = threading.Thread(target=run_and_keep)
    thread.start()
    eventually(lambda: len(list((tmp_path / "begun").iterdir())) > 5, PATIENCE_S, "tasks")
    stopping.set()
    thread.join(PATIENCE_S)
    assert "stage 0 of query stopped" in str(failures[0])
    (tmp_path / "go").touch()
    again = query.run("stopped", spark)
    assert 1 <= again.reports[0].reused < 10
    assert rows_of(again) == expected()


def test_what_is_no_session_is_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(UsageError, match="is no Spark session"):
        by_remainder(workspace, with_key).run("nowhere", spark="local[2]")  # proves G27
