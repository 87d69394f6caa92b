"""A Spark session that has room for members."""

from __future__ import annotations

import logging
import marshal
import os
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
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
    "spark.scheduler.mode": "FAIR",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.python.task.killTimeout": "100ms",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings for any session that runs tasks: docs/spark.md says what each is for."""

STREAM_ENVIRONMENT = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Variables that Spark puts into the environment of every stream of a Python data source."""

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
    """Return the active session, or start one on this machine with slots for the members and work.

    `master` starts it elsewhere: a standalone cluster, YARN, Kubernetes. `log` names a file for
    Spark's log, which otherwise goes to the terminal.
    """
    # Spark's workers, and the process that looks data sources up, read this variable.
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
                # PySpark raises what it logs here, so the log would only repeat it.
                PySparkLogger.getLogger(_RAISED).setLevel(logging.CRITICAL)
            spark = builder.getOrCreate()
            if not log:
                spark.sparkContext.setLogLevel("ERROR")
            if not is_local:
                ship(spark)
    except Exception as error:
        # If the JVM is gone, calls to it fail in many ways.
        if ended := _ended_jvm(error):
            _forget_jvm()
            raise _not_started(ended, log) from None
        if not isinstance(error, Py4JError | PySparkException):
            raise
        cause = explain(error)
        what = cause.what if isinstance(cause, HeadraceError) else str(cause)
        raise _not_started(what.removeprefix("Spark: "), log) from error
    return spark


def end(spark: SparkSession) -> None:
    """Stop a session. If this process started its JVM, wait until the JVM has ended."""
    gateway = SparkContext._gateway
    # A JVM that was killed cannot stop the session.
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
    """Return how the JVM of this process ended; "" if it runs or another process started it."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None:
        exited = isinstance(error, PySparkException) and error.getCondition() == _NEVER_READY
        return "its JVM ended before it was ready" if exited else ""
    if isinstance(error, Py4JNetworkError | OSError):
        # The JVM is about to end.
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_WORD_S)
    code = gateway.proc.poll()
    if code is None:
        return ""
    return f"{_KILLED} (signal {-code})" if code < 0 else f"its JVM ended (exit {code})"


def _forget_jvm() -> None:
    """Let the next session start another JVM."""
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def activate(spark: SparkSession) -> None:
    """Make a session that of this thread, so that streams can start in it."""
    register(spark)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    _fill_environment(spark)


def _fill_environment(spark: SparkSession) -> None:
    """Put the variables of streams into the map that all streams of the data source share.

    Each stream puts them when it starts, without a lock: two that start at once can break the map
    for good. To put a key that the map has breaks nothing.
    """
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    with _filling:
        shared = manager.lookupDataSource("headrace").dataSourceCls().envVars()
        for name, value in STREAM_ENVIRONMENT.items():
            shared.putIfAbsent(name, value)


def ship(spark: SparkSession) -> None:
    """Send this package to the executors, which then import it instead of one that they have.

    Its dependencies (pyarrow, numpy, msgspec, xxhash, obstore) must be installed there: see
    docs/spark.md.
    """
    context: Any = spark.sparkContext
    root = Path(__file__).parent.parent
    # Executors fetch it whenever they start. The directory lives as long as the application.
    archive = Path(context._temp_dir) / f"headrace-{VERSION}.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in (*root.rglob("*.py"), root.parent / "pyspark_headrace.py"):
            name = file.relative_to(root.parent)
            packed.write(file, name)
            packed.writestr(str(name.with_suffix(".pyc")), _compiled(file))
    context.addPyFile(str(archive))


def _compiled(file: Path) -> bytes:
    """Return a module as Python of this version compiles it.

    From a zip every worker would compile it anew. Python of another version uses the source.
    """
    code = SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    unchecked = (1).to_bytes(4, "little")
    header = MAGIC_NUMBER + unchecked + source_hash(file.read_bytes())
    return header + marshal.dumps(code)


def _start_jvm(settings: Mapping[str, str], log: Path) -> None:
    """Start a JVM whose standard error goes to a file, unless a JVM runs."""
    if SparkContext._gateway:
        return
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UsageError(
            f"Spark's log cannot be written to {log}: {error.strerror}", do="name another file"
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
        do=f"{do}; its log is {log}" if log else do,
    )
