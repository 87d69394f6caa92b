"""What Spark says of a failure, as one line, and whether another try can help."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException

from headrace.errors import (
    DataError,
    FencedError,
    HeadraceError,
    NotFoundError,
    OutdatedError,
    PeerLostError,
    PublishError,
    SchemaError,
    StorageError,
    UsageError,
)
from headrace.spark.query_failure import GONE, explain, is_crash, is_final, is_late_start, is_loss

SOURCE = """\
[STREAM_FAILED] Query [id = 8157506c, runId = 50431734] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "client.py", line 88, in _open
pyarrow._flight.FlightUnavailableError: Flight returned unavailable error

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "client.py", line 90, in _open
    raise translate(error, peer) from error
headrace.errors.PeerLostError: shuffle-reader cannot be reached: Connection refused; see whether

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 281, in main
headrace.errors.{error}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: movements [id = 8157506c, runId = 50431734]
"""

BARRIER = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a \
failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task \
ResultTask(0, 1) finished unsuccessfully.
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting \
'spark.sql.execution.pyspark.udf.faulthandler.enabled' to 'true' for the better Python traceback.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.hasNext(PythonRunner.scala:1034)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""

FUNCTION = """\
An error occurred while calling o123.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 1.0 failed
Traceback (most recent call last):
  File "tasks.py", line 7, in cents
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.hasNext(PythonRunner.scala:1034)
"""

MASTER = """\
An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'bogus'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3313)
"""

MISSING = "ModuleNotFoundError: No module named 'msgspec'"
MISMATCH = (
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker"
    " has different version: 3.13 than that in driver: 3.11, PySpark cannot run with different"
)
SILENT = "[STREAM_FAILED] Query [id = 8157506c, runId = 50431734] terminated with exception:  "


def stream(text: str) -> BaseException:
    return StreamingQueryException(text)


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (
            stream(SOURCE.format(error="UsageError: no task 'x': y; use another")),
            UsageError,
            "no task 'x': y; use another",
        ),
        (
            stream(SOURCE.format(error="PeerLostError: member 1 is gone; see; whether it runs")),
            PeerLostError,
            "member 1 is gone; see; whether it runs",
        ),
        (
            stream(SOURCE.format(error="DataError: the file is damaged")),
            DataError,
            "the file is damaged",
        ),
        (
            Py4JError(BARRIER),
            PeerLostError,
            "a Python worker of Spark crashed or was killed; read Spark's log",
        ),
        (
            Py4JError(FUNCTION),
            PeerLostError,
            "Spark: ZeroDivisionError: division by zero; read Spark's log",
        ),
        (
            Py4JError(MASTER),
            PeerLostError,
            "Spark: org.apache.spark.SparkException: Could not parse Master URL: 'bogus';"
            " read Spark's log",
        ),
        (
            stream(SILENT),
            PeerLostError,
            "Spark: a process of the query ended and gave no reason; read Spark's log",
        ),
        (
            stream(f"{SILENT}Writing job aborted SQLSTATE: XXKST"),
            PeerLostError,
            "Spark: Writing job aborted; read Spark's log",
        ),
        (Py4JError(""), PeerLostError, "Spark: a process of the query ended and gave no reason"),
        (
            Py4JError(f"Traceback:\nValueError: {'x' * 5000}"),
            PeerLostError,
            f"Spark: ValueError: {'x' * 300}; read Spark's log",
        ),
        (
            AnalysisException(f"{'x' * 5000}\n'Project"),
            UsageError,
            f"Spark: {'x' * 300}; correct the query",
        ),
        (Py4JError("x" * 5000), PeerLostError, f"Spark: {'x' * 300}; read Spark's log"),
        (
            AnalysisException(
                "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n"
                "headrace.errors.NotFoundError: there is no collection 'x'; create it\n SQLSTATE: 1"
            ),
            NotFoundError,
            "there is no collection 'x'; create it",
        ),
        (
            AnalysisException(
                "[UNRESOLVED_COLUMN] A column `x` cannot be resolved. SQLSTATE: 42703;\n'Project"
            ),
            UsageError,
            "Spark: [UNRESOLVED_COLUMN] A column `x` cannot be resolved; correct the query",
        ),
        (
            Py4JError(FUNCTION.replace("ZeroDivisionError: division", MISSING)),
            UsageError,
            "the Python of Spark's workers has no msgspec; set PYSPARK_PYTHON to a Python with",
        ),
        (
            Py4JError(FUNCTION.replace("ZeroDivisionError: division", MISMATCH)),
            UsageError,
            "Spark's workers run Python 3.13, and the driver 3.11; set PYSPARK_PYTHON to",
        ),
        (Py4JNetworkError("Answer from Java side is empty"), PeerLostError, str(GONE)),
    ],
)
def test_a_failure_is_one_line(error: BaseException, kind: type[HeadraceError], line: str) -> None:
    found = explain(error)
    assert type(found) is kind
    assert str(found).startswith(line)
    assert "\n" not in str(found)


def test_what_is_not_of_spark_stays_what_it_is() -> None:
    for error in (ValueError("x"), StorageError("the disk is full")):
        assert explain(error) is error


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (GONE, True),
        (UsageError("x"), True),
        (NotFoundError("x"), True),
        (SchemaError("x"), True),
        (DataError("x"), True),
        (OutdatedError("x"), False),
        (FencedError("x"), False),
        (ZeroDivisionError("x"), True),
        (KeyError("x"), True),
        (PeerLostError("x"), False),
        (StorageError("x"), False),
        (OSError("x"), False),
        (Py4JError("x"), False),
        (stream("x"), False),
    ],
)
def test_what_would_fail_again_is_final(error: BaseException, final: bool) -> None:
    assert is_final(error) is final


def test_a_process_that_starts_too_late_is_told_from_one_that_fails() -> None:
    late = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
    assert is_late_start(stream(f"[STREAM_FAILED] Query [id = 1, runId = 2] {late}"))
    assert not is_late_start(stream(SOURCE.format(error="UsageError: x")))
    assert not is_late_start(ValueError("failed to connect back"))


def test_what_spark_says_of_a_process_that_ended_gives_way_to_who_knows_better() -> None:
    for said in (Py4JError(BARRIER), Py4JError(FUNCTION), stream(SILENT)):
        assert is_crash(explain(said))
        assert is_loss(explain(said))
    assert not is_crash(GONE)
    assert not is_crash(UsageError("Spark: x"))
    assert is_loss(PublishError("rolled back"))
    assert not is_loss(UsageError("x"))
