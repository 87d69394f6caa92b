"""Stages whose function takes all rows as DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import HeadraceError, UsageError
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.source.sources import CollectionSource, FileSource
from headrace.spark.pipelines.spark_stage import SparkStage


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


def test_it_reads_files_and_collections_as_they_were_planned(
    spark: SparkSession, workspace: hr.Workspace, tmp_path: Path
) -> None:
    """A function gets a DataFrame for each stage that it reads from, in their order."""
    collection = workspace.collection("names", "n long, name string", key="n", journals=2)
    workspace.append(collection, [{"n": n, "name": f"name {n}"} for n in range(0, 20, 2)])
    (tmp_path / "rows.csv").write_text("n,kind\n" + "".join(f"{n},{n % 3}\n" for n in range(12)))

    def join(rows: DataFrame, names: DataFrame) -> DataFrame:
        return rows.join(names, "n").select("n", "kind", "name")

    job = (
        Job("join")
        .add_stage(Stage("rows", FileSource(str(tmp_path / "rows.csv"))))
        .add_stage(Stage("names", CollectionSource(workspace, "names")))
        .add_stage(Stage("join", SparkStage(join, 4)), ["rows", "names"])
    )
    pipeline = hr.pipeline(job, workspace)
    assert pipeline.run(spark).outcome == "done"
    found = pipeline.collect().sort_by("n").to_pylist()
    assert found == [{"n": n, "kind": n % 3, "name": f"name {n}"} for n in range(0, 12, 2)]


def fail(rows: DataFrame) -> DataFrame:
    raise KeyError("kind")


def test_a_function_that_fails_is_named_and_tried_again_by_the_next_run(
    spark: SparkSession, workspace: hr.Workspace
) -> None:
    def run(function: Callable[[DataFrame], Any]) -> str:
        source = hr.pipeline("fails", workspace).source(pa.table({"n": range(10)}))
        return source.spark(function, name="query", version="1").run(spark).outcome

    with pytest.raises(HeadraceError, match=r"^stage 'query': KeyError: 'kind'; mend its function"):
        run(fail)
    with pytest.raises(UsageError, match="the function of stage 'query' returned a int, not a"):
        run(lambda rows: rows.count())
    with pytest.raises(UsageError, match=r"^stage 'query': Spark: .*nothing"):
        run(lambda rows: rows.select("nothing"))
    assert run(lambda rows: rows) == "done"
    assert run(fail) == "done", "it is sealed"


def test_an_empty_input_has_the_columns_that_the_stage_above_declares(
    spark: SparkSession, workspace: hr.Workspace
) -> None:
    """So a count of nothing is a row. Without columns there is nothing to compute from."""

    def drop(row: dict[str, Any]) -> list[dict[str, Any]]:
        return []

    def run(name: str, schema: str | None) -> list[dict[str, Any]]:
        pipeline = (
            hr.pipeline(name, workspace)
            .source(pa.table({"n": range(10)}))
            .flat_map(drop, schema=schema, version="1")
            .spark(lambda rows: rows.agg(F.count("n").alias("rows")), version="1")
        )
        assert pipeline.run(spark).outcome == "done"
        return list(pipeline.collect().to_pylist())

    assert run("declared", "n long") == [{"rows": 0}]
    assert run("unknown", None) == []
