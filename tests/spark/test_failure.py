"""What Spark says of a failure becomes one line."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from headrace.errors import HeadraceError, PeerLostError, SchemaError
from headrace.spark.failure import explain

TRACE = "\n\tat org.apache.spark.Some.thing(Some.scala:1)"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "An error occurred while calling o5.collectToPython.\n: java.lang.StackOverflowError",
            PeerLostError("Spark: java.lang.StackOverflowError", do="see Spark's log"),
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: no room SQLSTATE: XXKST",
            PeerLostError("Spark: no room", do="see Spark's log"),
        ),
        (
            "An error occurred while calling o5.load.\n: x\nheadrace.errors.SchemaError: a; do b",
            SchemaError("a", do="do b"),
        ),
        (
            "",
            PeerLostError(
                "Spark: a process of the query ended without a word", do="see Spark's log"
            ),
        ),
    ],
)
def test_a_failure_is_one_line(said: str, expected: HeadraceError) -> None:
    found = explain(Py4JError(said + TRACE * bool(said)))
    assert (type(found), str(found)) == (type(expected), str(expected))
