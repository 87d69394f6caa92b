"""Makes `format("headrace")` known to a session, whichever Python its workers run.

Spark looks for `pyspark_headrace` in the Python of its workers: `PYSPARK_PYTHON`, else `python3` on
the PATH. That Python has Headrace if its environment is activated. For every other session this
module registers the data source.
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
"""PySpark runs this if PYSPARK_PYTHON is not set."""

_registering = threading.Lock()


def register(spark: SparkSession) -> None:
    """Make `format("headrace")` work in this session, for reading and writing, batch and stream.

    The workers of a local session run this Python from now on, unless PYSPARK_PYTHON names another.
    Every function of `headrace.spark` that takes a session calls this by itself.
    """
    from headrace.spark.source.datasource import HeadraceSource

    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise UsageError(
            "a session of Spark Connect cannot run Headrace's data source",
            do="use a SparkSession with a driver in this process, such as hr.spark.session()",
        )
    with _registering:
        # The first call makes Spark look for the source in the Python of the workers.
        if session.sessionState().dataSourceManager().dataSourceExists(HeadraceSource.name()):
            return
        if str(spark.sparkContext.master).startswith("local"):
            _choose_python(spark.sparkContext)
        with _active(spark):
            spark.dataSource.register(HeadraceSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make the session the active one: Spark looks there for the name of the new source."""
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
    """Make workers on this machine run this Python, unless PYSPARK_PYTHON names another one.

    Raises UsageError if that one does not have Headrace.
    """
    if context.pythonExec == _UNCHOSEN:
        context.pythonExec = sys.executable
    elif not _can_import_headrace(context.pythonExec):
        raise UsageError(
            f"Spark's workers run {context.pythonExec}, which cannot import headrace",
            do=f"set PYSPARK_PYTHON={sys.executable} before you make the session",
        )


def _can_import_headrace(python: str) -> bool:
    try:
        tried = [python, "-c", "import headrace"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
