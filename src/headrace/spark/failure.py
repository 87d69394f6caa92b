"""What made a query fail, as one line: Spark wraps it, and gives text where it was an error.

What runs in the process of the source or in a task arrives as a traceback inside of a message. Our
own errors are found in it by their class.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from headrace.errors import (
    DataError,
    FencedError,
    HeadraceError,
    PeerLostError,
    SchemaError,
    UsageError,
    from_wire,
)

_OURS = re.compile(r"headrace\.errors\.(\w+): (.+)")
_PYTHON = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_LINE_MAX = 300


def explain(error: BaseException) -> BaseException:
    """The error of ours in it, if there is one; else one line of what Spark says."""
    if not isinstance(error, Py4JError | PySparkException):
        return error
    text = str(error)
    if found := _OURS.findall(text):
        kind, line = found[-1]
        what, _, do = line.strip().rpartition("; ")
        return from_wire(kind, what or do, do if what else "")
    if found := _PYTHON.findall(text):
        kind, line = found[-1]
        return PeerLostError(f"Spark: {kind}: {line.strip()[:_LINE_MAX]}", do="see Spark's log")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    what = lines[0][:_LINE_MAX] if lines else "a process of the query ended without a word"
    return PeerLostError(f"Spark: {what}", do="see Spark's log")


def is_final(error: BaseException) -> bool:
    """Whether to run it again would fail again, or do harm: somebody else runs the task then."""
    if isinstance(error, HeadraceError):
        return isinstance(error, UsageError | SchemaError | DataError | FencedError)
    if isinstance(error, AnalysisException | ParseException):
        return True
    return not isinstance(error, Py4JError | PySparkException | OSError)
