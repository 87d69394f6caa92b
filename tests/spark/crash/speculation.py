"""A driver of a cluster that publishes, while one of its tasks is slow and Spark speculates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

import headrace
from headrace.spark.spark_session import session
from headrace.spark.write.dataframe_transaction import publish
from headrace.testing.crash import eventually
from tests.spark.cluster import APPLICATION

FOREVER_S = 3600.0
"""The slow attempt does not fail: then another would be no speculation."""
ROWS, TASKS = 8, 4


def publish_speculatively(folder: Path, master: str) -> None:
    """Each attempt leaves a file; the first at task 0 ends after the commit, if Spark lets it."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.efficiency.enabled": "false",
        "spark.python.task.killTimeout": "60s",
        **APPLICATION,
    }
    spark = session(master=master, conf=conf, log=folder / "spark.log")
    workspace = headrace.open(folder / "workspace", create=False)
    rows = spark.range(0, ROWS, 1, TASKS).toDF("number")
    transaction = workspace.publisher("task/numbers").begin()
    slow = rows.mapInArrow(partial(_slow, str(folder)), "number long")
    publish(slow, workspace, "numbers", transaction)
    transaction.commit()
    (folder / "committed").touch()
    spark.stop()


def _slow(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    task = TaskContext.get()
    assert task
    attempt = f"task-{task.partitionId()}-{task.attemptNumber()}"
    (Path(folder) / attempt).touch()
    if attempt == "task-0-0":
        eventually((Path(folder) / "committed").exists, FOREVER_S, "the commit")
