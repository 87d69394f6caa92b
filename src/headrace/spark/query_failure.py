"""Explains in one line why a query failed.

Spark wraps an error that a worker or the source's process raised into an error of its own, whose
message contains the traceback as text. This module finds Headrace's own errors in it by their
class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

from headrace.errors import (
    DataError,
    HeadraceError,
    PeerLostError,
    PublishError,
    TransportError,
    UsageError,
    from_wire,
)

_OURS = re.compile(r"headrace\.errors\.(\w+): (.+)")
_PYTHON = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_STREAM = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception:\s*(.*?)\s*(SQLSTATE.*)?$")
_NO_MODULE = re.compile(
    r"No module named '(headrace|pyspark_headrace|pyarrow|numpy|pandas|msgspec|xxhash|obstore)\b"
)
_OTHER_PYTHON = re.compile(r"different version: (\S+) than that in driver: (\d+\.\d+)")
_STATE = re.compile(r"[.;]?\s*SQLSTATE: \w+;?\s*$")
_CRASHED = "Python worker exited unexpectedly"
_WORKER_CRASHED = "a Python worker of Spark crashed or was killed"
_LATE = "to connect back"
"""Spark says this if a Python process of a query did not start in ten seconds."""
_CALLING = "An error occurred while calling"
_LINE_MAX = 300
_SAME_PYTHON = (
    "set PYSPARK_PYTHON to a Python with the driver's version and packages before you make the"
    " session"
)

GONE = PeerLostError("the JVM of Spark is gone", do="run the program again")


def explain(error: BaseException) -> BaseException:
    """Return the error of Headrace that Spark's error contains; else Spark's message, cut short."""
    if isinstance(error, Py4JNetworkError):
        return GONE
    if not isinstance(error, Py4JError | PySparkException):
        return error
    text = str(error)
    if found := _OURS.findall(text):
        kind, line = found[-1]
        what, _, do = line.strip().rpartition("; ")
        return from_wire(kind, what or do, do if what else "")
    if wrong := _wrong_python(text):
        return wrong
    if isinstance(error, AnalysisException | ParseException):
        what = _STATE.sub("", text.splitlines()[0])[:_LINE_MAX]
        return UsageError(f"Spark: {what}", do="correct the query")
    if _CRASHED in text:
        return PeerLostError(_WORKER_CRASHED, do="read Spark's log")
    if found := _PYTHON.findall(text):
        kind, line = found[-1]
        return PeerLostError(f"Spark: {kind}: {line.strip()[:_LINE_MAX]}", do="read Spark's log")
    lines = [line.strip().lstrip(": ") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_CALLING):
        lines = lines[1:]
    what = _STREAM.sub(r"\1", lines[0])[:_LINE_MAX] if lines else ""
    what = what or "a process of the query ended and gave no reason"
    return PeerLostError(f"Spark: {what}", do="read Spark's log")


def explain_in(spark: SparkSession, error: BaseException) -> BaseException:
    """Return the same; if the session's JVM is gone, that is the reason whatever the error says."""
    return GONE if is_gone(spark) else explain(error)


def _wrong_python(text: str) -> UsageError | None:
    """Return what is wrong with the Python that Spark's workers run; None if nothing is."""
    if found := _OTHER_PYTHON.search(text):
        return UsageError(
            f"Spark's workers run Python {found[1]}, and the driver {found[2]}", do=_SAME_PYTHON
        )
    if found := _NO_MODULE.search(text):
        return UsageError(f"the Python of Spark's workers has no {found[1]}", do=_SAME_PYTHON)
    return None


def is_final(error: BaseException) -> bool:
    """Return True if another attempt would fail in the same way."""
    if error is GONE:
        return True
    if isinstance(error, HeadraceError):
        return isinstance(error, UsageError | DataError)
    return not isinstance(error, Py4JError | PySparkException | OSError)


def is_late_start(error: BaseException) -> bool:
    """Return True if the query never began, because the machine started its source too slowly."""
    return isinstance(error, Py4JError | PySparkException) and _LATE in str(error)


def is_crash(error: BaseException) -> bool:
    """Return True if Spark says no more than that a Python process ended."""
    return isinstance(error, PeerLostError) and (
        error.what == _WORKER_CRASHED or error.what.startswith("Spark: ")
    )


def is_loss(error: BaseException) -> bool:
    """Return True if the loss of a process, such as a member, may be the reason."""
    return isinstance(error, TransportError | PublishError)


@contextmanager
def raised_as_ours() -> Iterator[None]:
    """Raise an error of Spark as the error of Headrace that it stands for."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise explain(error) from None


@contextmanager
def one_line_if_gone(spark: SparkSession) -> Iterator[None]:
    """Raise an error of one line if the block fails because the JVM is gone."""
    try:
        yield
    except Exception:
        if not is_gone(spark):
            raise
        raise PeerLostError(GONE.what, do=GONE.do) from None


def is_gone(spark: SparkSession) -> bool:
    """Return True if the session's JVM is gone or has stopped."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (AttributeError, OSError, Py4JError):
        return True
