"""Whole pipelines with workers as Spark tasks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import headrace as hr


def double(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"n": pc.multiply(batch["id"], 2)})


def is_multiple_of_four(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(pc.bit_wise_and(batch["n"], 3), 0)


def test_a_dataframe_passes_a_paid_stage_and_one_on_memory_into_files_once(
    spark: SparkSession, workspace: hr.Workspace, tmp_path: Path
) -> None:
    """The second run does nothing."""
    out = hr.parquet(tmp_path / "out")
    for calls in (42, 0):
        pipeline = (
            hr.pipeline("captions", workspace)
            .source(spark.range(0, 1000, 1, 3), rows_per_unit=50)
            .map_batches(double, batch_size=25, expensive=True)
            .filter(is_multiple_of_four)
            .sink(out)
        )
        summary = pipeline.run(spark)
        assert summary.outcome == "done"
        assert summary.stages["double"].calls == calls
        assert sorted(out.table()["n"].to_pylist()) == [2 * n for n in range(0, 1000, 2)]
