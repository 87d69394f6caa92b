"""A Spark session that has room for members."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.version import VERSION

FAILURES = 4
"""Attempts at a task before its job fails, on one machine as on a cluster."""

SETTINGS = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    "spark.python.task.killTimeout": "100ms",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What a session of your own should have too: docs/spark.md says what each is for."""

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(
    shards: int = 2,
    *,
    master: str = "",
    name: str = "headrace",
    conf: Mapping[str, str] | None = None,
    log: str | Path = "",
) -> SparkSession:
    """The session that runs, or one of this machine with slots for so many members and the work.

    `master` takes it elsewhere: a standalone cluster, YARN, Kubernetes. `log`: a file for what
    Spark says, which else is on the terminal.
    """
    # The workers, and the process that looks a data source up, must have this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or f"local[{shards + max(2, os.cpu_count() or 1)},{FAILURES}]"
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK["spark.driver.host"])
    here = LOOPBACK if is_local else {}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **here, **(conf or {})}.items():
        builder = builder.config(key, value)
    with _saying_it_to(log):
        made = builder.getOrCreate()
    if not log:
        made.sparkContext.setLogLevel("ERROR")
    if not is_local:
        ship(made)
    return made


def activate(spark: SparkSession) -> None:
    """Make it the session of this thread."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def ship(spark: SparkSession) -> None:
    """Let the executors import this very package, whatever they have of it.

    What it is built on (pyarrow, numpy, msgspec, xxhash, obstore) must be there: docs/spark.md.
    """
    context: Any = spark.sparkContext
    root = Path(__file__).parent.parent
    # Executors ask for it whenever they start, and this directory ends with the application.
    archive = Path(context._temp_dir) / f"headrace-{VERSION}.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in (*root.rglob("*.py"), root.parent / "pyspark_headrace.py"):
            packed.write(file, file.relative_to(root.parent))
    context.addPyFile(str(archive))


@contextmanager
def _saying_it_to(log: str | Path) -> Iterator[None]:
    """What is started meanwhile has its standard error there, for as long as it lives."""
    if not log:
        yield
        return
    sys.stderr.flush()
    mine = os.dup(2)
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 2)
        os.close(file)
        yield
    finally:
        os.dup2(mine, 2)
        os.close(mine)
