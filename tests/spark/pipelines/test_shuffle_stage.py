"""Stages that group, join and deduplicate, as tasks of Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import UsageError
from headrace.pipeline.run import message_scan
from tests.pipeline.orders import ROWS, in_order, named, names, orders, totals


def test_a_group_a_join_and_distinct_in_one_job(
    spark: SparkSession,
    workspace: hr.Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between paid stages, into files. A second run does nothing."""
    monkeypatch.setattr(message_scan, "TASK_ROWS", ROWS // 4)
    out = hr.parquet(tmp_path / "out")

    def build() -> hr.Pipeline:
        doubled = pa.concat_tables([names(), names()])
        other = hr.pipeline("names", workspace).source(doubled, name="names", rows_per_unit=2)
        return (
            hr.pipeline("job", workspace)
            .source(orders(), rows_per_unit=ROWS // 8)
            .map(lambda row: row, name="pay", version="1", expensive=True, cost=1)
            .group_by("lang", partitions=3)
            .agg(n="count", total=("cents", "sum"))
            .join(other.distinct("lang", partitions=2), on="lang", how="full", partitions=2)
            .map(lambda row: row, name="last", version="1", expensive=True, cost=1)
            .sink(out)
        )

    expected = named(totals(), "full")
    summary = build().run(spark)
    assert (summary.outcome, summary.cost) == ("done", ROWS + len(expected))
    progress = build().status().progress
    assert progress["group-by"].tasks == 4 + 3
    again = build().run(spark)
    assert (again.outcome, again.cost) == ("done", 0)
    assert {each.tasks for each in build().status().progress.values()} == {0}, "it is sealed"
    assert in_order(out.table().select(["lang", "n", "total", "name"]).to_pylist()) == expected


def test_a_task_that_fails_ends_the_run_with_the_stage_and_the_column(
    spark: SparkSession, workspace: hr.Workspace
) -> None:
    pipeline = hr.pipeline("job", workspace).source(pa.table({"n": [2**62] * 4}), rows_per_unit=1)
    pipeline.map(lambda row: row, version="1").group_by(name="sums").agg(total=("n", "sum"))
    with pytest.raises(UsageError, match=r"^stage 'sums': total=sum\(n\): a sum does not fit"):
        pipeline.run(spark)
