"""Drivers of a cluster, one of whose tasks is slow, so that Spark runs a second attempt of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import headrace
from headrace.exchange.format.layout import PUBLISHED
from headrace.spark.spark_session import session
from headrace.spark.write.dataframe_transaction import publish
from headrace.storage.local_objects import LocalObjects
from headrace.testing.crash import eventually
from tests.pipeline.jobs import numbers
from tests.plan.plan_rows import Rows
from tests.spark.cluster import APPLICATION

FOREVER_S = 3600.0
"""The slow attempt does not fail: then another would be no speculation."""
ROWS, TASKS = 8, 4


PUBLISHED_FIRST, PUBLISHED_LAST = "published-first", "published-last"


def _speculating(folder: Path, master: str) -> SparkSession:
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
    return session(master=master, conf=conf, log=folder / "spark.log")


def publish_speculatively(folder: Path, master: str) -> None:
    """Each attempt leaves a file; the first at task 0 ends after the commit, if Spark lets it."""
    spark = _speculating(folder, master)
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


class SlowObjects(LocalObjects):
    """The first attempt that publishes waits until the query is complete, with all files stored."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "objects")
        self._folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return SlowObjects, (self._folder,)

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        task = TaskContext.get()
        if task is None or key.split("/")[-2] != PUBLISHED or not self._is_first(key):
            return super().put_if_absent(key, data)
        eventually((self._folder / "complete").exists, FOREVER_S, "the rows of the query")
        is_mine = super().put_if_absent(key, data)
        (self._folder / PUBLISHED_LAST).write_text(str(is_mine))
        return is_mine

    def delete_all(self, prefix: str) -> None:
        super().delete_all(prefix)
        if (self._folder / PUBLISHED_LAST).exists():
            (self._folder / "deleted").touch()

    def _is_first(self, key: str) -> bool:
        with suppress(FileExistsError):
            descriptor = os.open(self._folder / PUBLISHED_FIRST, os.O_CREAT | os.O_EXCL | os.O_RDWR)
            os.write(descriptor, key.encode())
            os.close(descriptor)
            return True
        return False


def query_speculatively(folder: Path, master: str, patience_s: float) -> Rows:
    """Return the rows of a query, one of whose map tasks is published while an attempt waits.

    That attempt then goes on to its end.
    """
    spark = _speculating(folder, master)
    with headrace.open(folder / "workspace") as workspace:
        query = (
            headrace.scan(numbers(ROWS), workspace, rows_per_unit=ROWS // TASKS)
            .group_by("n", partitions=2)
            .agg(count="count")
        )
        run = query.run("speculative", spark, objects=SlowObjects(folder))
        rows: Rows = run.table().sort_by("n").to_pylist()
    (folder / "complete").touch()
    last = folder / PUBLISHED_LAST
    eventually(
        lambda: (folder / "deleted").exists() or (last.exists() and last.read_text() == "True"),
        patience_s,
        "the end of the slow attempt",
    )
    spark.stop()
    return rows
