"""Any Spark writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import UsageError
from headrace.spark.sinks.contract import Sink, Target
from headrace.spark.sinks.writer import writer
from tests.spark.sinks.conftest import Numbers, checkpoint


def opened(sink: Sink, spark: SparkSession, workspace: headrace.Workspace) -> Target:
    return sink.open(spark, workspace, checkpoint(1))


def test_a_batch_that_is_written_again_is_there_twice(
    spark: SparkSession, workspace: headrace.Workspace, numbers: Numbers, tmp_path: Path
) -> None:
    """At least once, as it says."""
    location = str(tmp_path / "lines")
    sink = writer("json", location, compression="gzip")
    assert not sink.is_exactly_once
    assert str(sink) == f"format json in {location}, at least once"
    target = opened(sink, spark, workspace)
    assert target.last() is None
    for number in (1, 2, 2):
        target.write(numbers(number, number + 1), checkpoint(number))
    target.close()
    found = spark.read.json(f"{location}/*.json.gz").select("id").collect()
    assert sorted(found) == [(1,), (2,), (2,)]


def test_a_writer_that_overwrites_leaves_the_newest_batch(
    spark: SparkSession, workspace: headrace.Workspace, numbers: Numbers, tmp_path: Path
) -> None:
    target = opened(writer("parquet", str(tmp_path / "newest"), "overwrite"), spark, workspace)
    for number in (1, 2):
        target.write(numbers(number, number + 1), checkpoint(number))
    assert [row.id for row in spark.read.parquet(str(tmp_path / "newest")).collect()] == [2]


def test_what_cannot_be_written_is_named(
    spark: SparkSession, workspace: headrace.Workspace, numbers: Numbers, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="mode 'ignore' cannot write batch after batch; use"):
        writer("json", mode="ignore")  # type: ignore[arg-type]
    for sink, says in (
        (writer("nosuch"), "cannot be written: Spark has no format 'nosuch'; correct its name"),
        (writer("text", str(tmp_path / "text")), r"cannot be written as format text in .*column"),
    ):
        with pytest.raises(UsageError, match=says) as raised:
            opened(sink, spark, workspace).write(numbers(0, 1), checkpoint(1))
        assert "\n" not in str(raised.value)
