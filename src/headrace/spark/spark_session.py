"""A Spark session that has room for members."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError, PeerLostError, UsageError
from headrace.spark.gateway_log import without_tracebacks
from headrace.spark.query_failure import explain
from headrace.spark.registration import register
from headrace.version import VERSION

FAILURES = 4
"""Attempts at a task before its job fails, on one machine as on a cluster."""

SETTINGS = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.python.task.killTimeout": "100ms",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What a session of your own should have too: docs/spark.md says what each is for."""

STREAM_ENVIRONMENT = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark puts into the environment of every stream of a Python data source."""

_filling = threading.Lock()
_END_S = 30.0
_WORD_S = 2.0
_KILLED = "its JVM was killed"
_NEVER_READY = "JAVA_GATEWAY_EXITED"
_RAISED = "DataFrameQueryContextLogger"
_IN_FILE = {"spark.ui.showConsoleProgress": "false"}
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
    settings = {
        "spark.master": master,
        "spark.app.name": name,
        **SETTINGS,
        **(LOOPBACK if is_local else {}),
        **(_IN_FILE if log else {}),
        **(conf or {}),
    }
    builder: SparkSession.Builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with without_tracebacks():
            if log:
                _start_jvm(settings, Path(log))
                # What it logs in this process is raised, too.
                PySparkLogger.getLogger(_RAISED).setLevel(logging.CRITICAL)
            made = builder.getOrCreate()
            if not log:
                made.sparkContext.setLogLevel("ERROR")
            if not is_local:
                ship(made)
    except Exception as error:
        # Without a JVM any call to it may fail, in many ways.
        if ended := _ended_jvm(error):
            _forget_jvm()
            raise _not_started(ended, log) from None
        if not isinstance(error, Py4JError | PySparkException):
            raise
        cause = explain(error)
        what = cause.what if isinstance(cause, HeadraceError) else str(cause)
        raise _not_started(what.removeprefix("Spark: "), log) from error
    return made


def end(spark: SparkSession) -> None:
    """Stop it, and wait for the end of the JVM, if this process started it for the session."""
    gateway = SparkContext._gateway
    # One that was killed cannot be told to stop.
    with (
        suppress(Py4JError, OSError),
        warnings.catch_warnings(action="ignore"),
        without_tracebacks(),
    ):
        spark.stop()
    if gateway is None or gateway.proc is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    _forget_jvm()


@contextmanager
def temporary_session(
    shards: int, *, master: str = "", conf: Mapping[str, str] | None = None, log: str | Path = ""
) -> Iterator[SparkSession]:
    """Yield a session for as long as the block runs; none of its processes outlives the block."""
    spark = session(shards, master=master, conf=conf, log=log)
    try:
        yield spark
    finally:
        end(spark)


def _ended_jvm(error: Exception) -> str:
    """How the JVM of this process ended; nothing if it runs, or another process started it."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None:
        exited = isinstance(error, PySparkException) and error.getCondition() == _NEVER_READY
        return "its JVM ended before it was ready" if exited else ""
    if isinstance(error, Py4JNetworkError | OSError):
        # It is about to end.
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_WORD_S)
    code = gateway.proc.poll()
    if code is None:
        return ""
    return f"{_KILLED} (signal {-code})" if code < 0 else f"its JVM ended (exit {code})"


def _forget_jvm() -> None:
    """Let the next session start another."""
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def activate(spark: SparkSession) -> None:
    """Make it the session of this thread, to start streams in."""
    register(spark)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    _fill_environment(spark)


def _fill_environment(spark: SparkSession) -> None:
    """All streams of a data source share one map of variables, and each puts its own when it
    starts, with no lock: two that start at once can break it for good. Keys that are there already
    break nothing.
    """
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    with _filling:
        shared = manager.lookupDataSource("headrace").dataSourceCls().envVars()
        for name, value in STREAM_ENVIRONMENT.items():
            shared.putIfAbsent(name, value)


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


def _start_jvm(settings: Mapping[str, str], log: Path) -> None:
    """With its standard error in a file, unless one runs."""
    if SparkContext._gateway:
        return
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UsageError(
            f"what Spark says cannot be written to {log}: {error.strerror}", do="name another file"
        ) from error
    with os.fdopen(descriptor, "ab") as file:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"stderr": file})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def _not_started(what: str, log: str | Path) -> HeadraceError:
    do = "check that `java -version` is 17 or newer, and the master"
    if what.startswith(_KILLED):
        do = "run the program again"
    return PeerLostError(
        f"Spark did not start: {what}",
        do=f"{do}; what it said is in {log}" if log else do,
    )
