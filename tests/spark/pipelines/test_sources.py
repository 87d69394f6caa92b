"""DataFrames as sources: stored once, whatever Spark returns when it computes them again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import ChangedError, UsageError
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.source.source_topics import UnitLists
from headrace.pipeline.source.sources import FileSource
from headrace.spark.pipelines.dataframe_source import DataFrameSource
from tests.pipeline.fake_operators import FakeOperator
from tests.pipeline.jobs import LOCAL, chain, results, run, same

USERS = list(range(1, 501))


def users(spark: SparkSession, partitions: int, *, is_reversed: bool = False) -> DataFrame:
    """Return the users, in another order if asked, as another number of cores would do."""
    rows = spark.range(1, 501, 1, partitions).withColumnRenamed("id", "n")
    return rows.orderBy(F.desc("n")) if is_reversed else rows


def job_of(rows: DataFrame, operator: FakeOperator, version: str = "") -> Job:
    source = DataFrameSource(rows, rows_per_unit=100, version=version)
    return chain(source, Stage("users", operator, LOCAL))


# proves G16
def test_the_same_units_in_whatever_order_the_second_run_gets_them(
    spark: SparkSession, workspace: hr.Workspace
) -> None:
    """The example of the specification: users 1 to 500 in units of 100; the run ends early."""
    operator = FakeOperator(same)
    with JobRun(workspace, job_of(users(spark, 5), operator)) as begun:
        operator.before = lambda unit, rows: (
            begun.master.stop() if len(operator.seen) >= 2 else None
        )
        ThreadRunner().run(begun)
        assert begun.summary().outcome == "stopped"
    operator.before = lambda unit, rows: None
    assert len(operator.seen) < 5
    again = job_of(users(spark, 3, is_reversed=True), operator)
    assert run(workspace, again).outcome == "done"
    assert results(workspace, again, "users") == USERS
    assert set(operator.seen.values()) == {1}


# proves G16
def test_a_driver_that_dies_before_the_units_are_sealed_stores_them_again(
    spark: SparkSession, workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = FakeOperator(same)

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(UnitLists, "store", die)
        with pytest.raises(RuntimeError):
            run(workspace, job_of(users(spark, 2), operator))
    assert not operator.seen
    job = job_of(users(spark, 3, is_reversed=True), operator)
    run(workspace, job)
    assert results(workspace, job, "users") == USERS


# proves G16
def test_another_version_and_other_columns_are_changes(
    spark: SparkSession, workspace: hr.Workspace
) -> None:
    operator = FakeOperator(same)
    run(workspace, job_of(users(spark, 1), operator, "monday"))
    with pytest.raises(ChangedError, match="its columns, its version or the files"):
        run(workspace, job_of(users(spark, 1), operator, "tuesday"))
    with pytest.raises(ChangedError, match="source 'source' has changed"):
        run(workspace, job_of(users(spark, 1).selectExpr("n", "n AS m"), operator, "monday"))

    def plan(version: str) -> list[str]:
        pipeline = hr.pipeline("job", workspace).source(users(spark, 1), version=version)
        return [each.stage for each in pipeline.map_batches(same, name="users").plan().changes]

    assert "source" not in plan("monday")
    assert "source" in plan("tuesday")


def test_a_job_reads_all_of_its_sources(
    spark: SparkSession, workspace: hr.Workspace, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"n": range(1000, 1040)}), tmp_path / "n.parquet")
    job = (
        Job("job")
        .add_stage(Stage("frame", DataFrameSource(users(spark, 2), 100)))
        .add_stage(Stage("files", FileSource(str(tmp_path / "n.parquet"), 7)))
        .add_stage(Stage("both", FakeOperator(same), LOCAL), ["frame", "files"])
    )
    pipeline = hr.pipeline(job, workspace)
    assert pipeline.run(runner=ThreadRunner()).outcome == "done"
    assert sorted(pipeline.collect()["n"].to_pylist()) == USERS + list(range(1000, 1040))
    with pytest.raises(UsageError, match="has the stages of its Job"):
        pipeline.map(same)
