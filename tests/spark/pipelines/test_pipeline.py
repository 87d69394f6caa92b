"""Whole pipelines with workers as Spark tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import headrace as hr
from headrace.testing.paid_server import PaidServer


def double(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"n": pc.multiply(batch["id"], 2)})


def ask(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": str(row["id"])}


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"answer": given["answer"]}


# proves G15
def test_two_stage_pipeline(spark: SparkSession, workspace: hr.Workspace, tmp_path: Path) -> None:
    """A source, an expensive stage and a sink: all rows are processed, paid and stored once."""
    out = hr.parquet(tmp_path / "out")
    with PaidServer(tmp_path / "bill.ndjson") as server:
        summary = (
            hr.pipeline("answers", workspace)
            .source(spark.range(0, 100, 1, 3), rows_per_unit=10)
            .http(hr.http(f"{server.url}/ask", json=ask, parse=answer, cost=0.01), workers=2)
            .sink(out)
            .run(spark)
        )
    assert (summary.outcome, summary.cost_in_all) == ("done", 1.0)
    assert server.paid() == {str(n): 1 for n in range(100)}
    rows = out.table().select(["id", "answer"]).sort_by("id").to_pylist()
    assert rows == [{"id": n, "answer": f"answer to {n}"} for n in range(100)]


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
