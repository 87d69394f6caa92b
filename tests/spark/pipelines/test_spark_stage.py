"""Stages whose function takes all rows as DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr


def double(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"n": pc.multiply(batch["n"], 2), "kind": pc.bit_wise_and(batch["n"], 3)})


def price(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"kind": batch["kind"], "price": pc.multiply(batch["total"], 10)})


class Totals:
    """Adds up by kind, and counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rows: DataFrame) -> DataFrame:
        self.calls += 1
        return rows.groupBy("kind").agg(F.sum("n").alias("total"))


def build(workspace: hr.Workspace, totals: Callable[..., Any], out: Any) -> hr.Pipeline:
    return (
        hr.pipeline("totals", workspace)
        .source(pa.table({"n": range(100)}), rows_per_unit=9)
        .map_batches(double, workers=2)
        .spark(totals, name="totals", version="1", rows_per_unit=3)
        .map_batches(price, expensive=True, batch_size=1)
        .sink(out)
    )


EXPECTED = {kind: 10 * sum(2 * n for n in range(kind, 100, 4)) for kind in range(4)}


def test_all_rows_of_the_input_are_one_dataframe_once(
    spark: SparkSession, workspace: hr.Workspace, tmp_path: Path
) -> None:
    """Between an operator and an expensive one, and into files. A second run does nothing."""
    totals, out = Totals(), hr.parquet(tmp_path / "out")
    summary = build(workspace, totals, out).run(spark)
    assert summary.outcome == "done"
    assert (totals.calls, summary.stages["price"].calls) == (1, 4)
    counts = summary.stages["totals"]
    assert (counts.messages, counts.rows_in, counts.rows_out) == (12, 100, 4)
    again = build(workspace, totals, out).run(spark)
    assert again.outcome == "done"
    assert (totals.calls, again.stages["price"].calls) == (1, 0)
    assert dict(zip(*out.table().select(["kind", "price"]).to_pydict().values(), strict=True)) == (
        EXPECTED
    )
    assert out.table().num_rows == 4
