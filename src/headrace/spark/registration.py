"""Making `format("headrace")` known to a session, whichever Python its workers run.

Spark looks for `pyspark_headrace` in the Python of its workers: `PYSPARK_PYTHON`, else `python3` on
the PATH. That one has Headrace if its environment is activated. For every other session the source
is registered here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.errors import UsageError

_UNCHOSEN = "python3"
"""What PySpark runs if nobody sets PYSPARK_PYTHON."""

_registering = threading.Lock()


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("headrace")`, and the other three, work in this session.

    On one machine its workers run this Python from now on, unless PYSPARK_PYTHON names another.
    All of `headrace.spark` that takes a session does this by itself.
    """
    from headrace.spark.source.datasource import HeadraceSource

    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise UsageError(
            "a session of Spark Connect has no place for Headrace's data source",
            do="use a SparkSession with a driver in this process, as hr.spark.session() makes it",
        )
    with _registering:
        # The first call looks the source up in the Python of the workers.
        if session.sessionState().dataSourceManager().dataSourceExists(HeadraceSource.name()):
            return
        if str(spark.sparkContext.master).startswith("local"):
            _choose_python(spark.sparkContext)
        with _active(spark):
            spark.dataSource.register(HeadraceSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Spark registers in the session that it is given, and looks for the name in the active one."""
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _choose_python(context: SparkContext) -> None:
    """Let workers on this machine run this Python, unless somebody chose another that can do it."""
    if context.pythonExec == _UNCHOSEN:
        context.pythonExec = sys.executable
    elif not _can_import_headrace(context.pythonExec):
        raise UsageError(
            f"Spark's workers run {context.pythonExec}, which cannot import headrace",
            do=f"set PYSPARK_PYTHON={sys.executable} before the session is made",
        )


def _can_import_headrace(python: str) -> bool:
    try:
        tried = [python, "-c", "import headrace"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
