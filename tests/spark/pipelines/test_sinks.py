"""Every kind of sink behind a stage: each row once, although runs end between, and one fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.errors import HeadraceError
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.operators.operator import operator_spec
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.record import OnChange
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.sinks import CallableSink
from headrace.pipeline.source.sources import TableSource
from headrace.spark.pipelines.sink_feed import SinkFeed
from headrace.spark.pipelines.spark_engine import SinkOperator, SparkEngine
from headrace.spark.sinks.contract import CheckpointId
from tests.spark.sinks.test_jdbc import Database

ROWS = 40
_COUNTS = "SELECT COUNT(*), MIN(id), MAX(id) FROM totals"
FIRST_ROWS = 16


def name(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "name": f"name {row['id']}"}


class Function:
    """Keeps rows by checkpoint; once it fails half-way."""

    def __init__(self) -> None:
        self.kept: dict[CheckpointId, list[int]] = {}
        self.calls: list[int] = []
        self.fails_at = 0

    def __call__(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        ids = sorted(row["id"] for row in rows.collect())
        self.calls.append(checkpoint.number)
        assert self.kept.setdefault(checkpoint, ids) == ids, "other rows under the same number"
        if checkpoint.number == self.fails_at:
            self.fails_at = 0
            raise OSError("the disk is full")


def write_unit(folder: Path, table: pa.Table, key: str) -> None:
    """Write the rows of a unit to a file that is named after their key."""
    (folder / key).write_text(json.dumps(table["id"].to_pylist()))


def run_with_threads(
    spark: SparkSession, workspace: hr.Workspace, job: Job, on_change: OnChange = "refuse"
) -> str:
    """Run a job whose sinks are fed by Spark, and whose workers are threads: they start faster."""
    with JobRun(workspace, job, on_change=on_change) as begun:
        feeds = [
            SinkFeed(spark, workspace, begun, stage.stage_id, stage.spec.sink)
            for stage in job.operators
            if isinstance(stage.spec, SinkOperator) and stage.spec.sink
        ]
        for feed in feeds:
            feed.start()
        ThreadRunner().run(begun)
        for feed in feeds:
            feed.finish(write_rest=begun.master.error is None)
        return begun.summary().outcome


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    database = Database(spark, f"jdbc:derby:{tmp_path}/rows;create=true")
    database.do("CREATE TABLE totals (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(20))")
    yield database
    database.close()
    with pytest.raises(Py4JJavaError, match="shutdown"):
        jvm.java.sql.DriverManager.getConnection(f"jdbc:derby:{tmp_path}/rows;shutdown=true")


# proves G15
def test_every_sink_holds_each_row_once(
    spark: SparkSession, workspace: hr.Workspace, database: Database, tmp_path: Path
) -> None:
    """The budget ends the first run, a sink that fails half-way the second; the third is the rest.

    The batch that failed is written again with the same rows and number.
    """
    folder = tmp_path / "units"
    folder.mkdir()
    collection = workspace.collection("named", "id long, name string", key="id")
    files, function = hr.parquet(tmp_path / "files"), Function()
    sinks = {
        "files": files,
        "table": hr.jdbc(database.url, "totals", key=["id"]),
        "collection": collection,
        "json": hr.writer("json", str(tmp_path / "json")),
        "function": hr.foreach_batch(function, exactly_once=True),
    }

    def run(budget: float) -> str:
        job = Job("named").add_stage(
            Stage("source", TableSource(pa.table({"id": range(ROWS)}), rows_per_unit=4))
        )
        call = operator_spec("map", name, expensive=True, cost=1.0, budget=budget)
        job.add_stage(Stage("call", call), ["source"])
        for stage, sink in sinks.items():
            operator = SparkEngine(workspace).sink(sink)
            assert operator is not None
            job.add_stage(Stage(stage, operator), ["call"])
        function_of_units = CallableSink(lambda *unit: write_unit(folder, *unit), version="1")
        job.add_stage(Stage("units", function_of_units), ["call"])
        return run_with_threads(spark, workspace, job)

    assert run(FIRST_ROWS) == "paused"
    assert database.rows("SELECT COUNT(*) FROM totals") == [(FIRST_ROWS,)]
    function.fails_at = 2
    with pytest.raises(HeadraceError, match="the disk is full"):
        run(10 * ROWS)
    assert run(10 * ROWS) == "done"
    every = list(range(ROWS))
    assert sorted(files.table()["id"].to_pylist()) == every
    assert database.rows(_COUNTS) == [(ROWS, 0, ROWS - 1)]
    assert (
        sorted(row["id"] for row in hr.spark.read(spark, workspace, ["named"]).collect()) == every
    )
    assert sorted(row["id"] for row in spark.read.json(str(tmp_path / "json")).collect()) == every
    assert sorted(n for ids in function.kept.values() for n in ids) == every
    assert function.calls == [1, 2, 2]
    units = [json.loads(file.read_text()) for file in folder.iterdir()]
    assert sorted(n for ids in units for n in ids) == every


def test_a_table_follows_a_job_that_begins_again(
    spark: SparkSession, workspace: hr.Workspace, database: Database
) -> None:
    """A job that begins anew takes its table over from the generation before."""
    operator = SparkEngine(workspace).sink(hr.jdbc(database.url, "totals", key=["id"]))
    assert operator is not None

    def run(rows: int, on_change: OnChange) -> None:
        table = pa.table({"id": range(rows), "name": ["x"] * rows})
        job = Job("kept").add_stage(Stage("source", TableSource(table)))
        job.add_stage(Stage("table", operator), ["source"])
        run_with_threads(spark, workspace, job, on_change)

    run(3, "refuse")
    run(5, "restart")
    run(6, "recompute")
    assert database.rows(_COUNTS) == [(6, 0, 5)]
