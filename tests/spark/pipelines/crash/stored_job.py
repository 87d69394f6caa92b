"""A job that writes samples or vectors to a store, in batches of two units."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

import headrace as hr
from headrace.spark.pipelines import sink_feed
from headrace.spark.sinks.store_sink import StoreTarget
from headrace.spark.spark_session import session
from tests.spark.crash.death import Death, Killing, deadly
from tests.spark.crash.driver import configuration
from tests.spark.crash.outputs import StoreKindName

ROWS, ROWS_PER_BATCH = 60, 10
BASE_MS = 1_700_000_000_000
"""The time of row 0. Every row has a second of its own."""


def create_store(kind: StoreKindName, path: Path) -> None:
    if kind == "vectors":
        hr.create_store(path, kind, dimension=2, metric="l2")
    else:
        hr.create_store(path, kind)


def store_rows(kind: StoreKindName, numbers: list[int], values: list[int]) -> pa.RecordBatch:
    """Return rows as the store takes them."""
    if kind == "vectors":
        columns: dict[str, Any] = {
            "id": [str(each) for each in numbers],
            "vector": [[float(each), 1.0] for each in values],
        }
    else:
        columns = {
            "timestamp": [BASE_MS + each * 1000 for each in numbers],
            "value": [float(each) for each in values],
            "parity": [str(each % 2) for each in numbers],
        }
    return pa.record_batch(columns)


def stored_values(kind: StoreKindName, path: Path) -> dict[int, int]:
    """Return what the store holds, by the number of the row."""
    if kind == "vectors":
        with hr.open_vectors(path) as vectors:
            found = [row for batch in vectors.scan() for row in batch.to_pylist()]
        return {int(row["id"]): int(row["vector"][0]) for row in found}
    with hr.open_timeseries(path) as series:
        table = pa.Table.from_batches(series.scan(), series.schema)
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    numbers = [(each - BASE_MS) // 1000 for each in times]
    parities = [dict(each)["parity"] for each in table["labels"].to_pylist()]
    assert parities == [str(each % 2) for each in numbers]
    return dict(zip(numbers, map(int, table["value"].to_pylist()), strict=True))


def run_job(spark: SparkSession, workspace: hr.Workspace, kind: StoreKindName, path: Path) -> str:
    """Run the job to its end, and return its outcome."""

    def as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch["n"].to_pylist()
        return store_rows(kind, numbers, numbers)

    pipeline = (
        hr.pipeline("stored", workspace)
        .source(pa.table({"n": range(ROWS)}), rows_per_unit=ROWS_PER_BATCH // 2)
        .map_batches(as_rows, version="1")
        .sink(hr.vectors(path) if kind == "vectors" else hr.timeseries(path))
    )
    with mock.patch.object(sink_feed, "ROWS_MAX", ROWS_PER_BATCH):
        return pipeline.run(spark).outcome


class DyingDriver:
    """Dies with its JVM at a step of the store's sink. Its files are below `life`."""

    def __init__(self, life: Path, death: Death) -> None:
        life.mkdir(parents=True)
        self._spark = session(1, conf=configuration(life), log=life / "spark.log")
        gateway = SparkContext._gateway
        assert gateway
        (life / "ids").write_text(f"{os.getpid()} {gateway.proc.pid}")
        dies = deadly(death, getattr(StoreTarget, death.step), Killing(life / "ids"))
        mock.patch.object(StoreTarget, death.step, lambda *args: dies(*args)).start()

    def run(self, workspace: Path, kind: StoreKindName, path: Path) -> None:
        with hr.open(workspace) as opened:
            run_job(self._spark, opened, kind, path)
