"""The kind of a test: what it is made of, and so how long it may take and when it is run.

A kind is a marker. A test or its file names it (`pytestmark = pytest.mark.crash`) where neither its
folder nor its fixtures show it.
"""

from __future__ import annotations

import re
from zlib import crc32

import pytest

KINDS = ("unit", "scenario", "property", "crash", "spark", "cluster")
SPARK_TIMEOUT_S = 900.0
"""Starting Spark takes half a minute of processor time, and minutes where others work."""
_SPARK_FIXTURES = {"spark", "completed_run", "cluster"}


def add_kinds(item: pytest.Item) -> None:
    """Mark a test with every kind that it shows; one that shows none is a unit or a scenario."""
    function = getattr(item, "function", None)
    fixtures = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    params = callspec.params.values() if callspec else ()
    folders = item.path.parts
    shown = {
        "property": getattr(function, "is_hypothesis_test", False),
        "crash": "crash" in folders,
        "spark": bool(_SPARK_FIXTURES & fixtures) or {"spark", "crash"} <= set(folders),
        "cluster": "cluster" in fixtures,
    }
    if "s3" in fixtures or any(each == "s3" for each in params if isinstance(each, str)):
        item.add_marker("long")  # A server has to start.
    for kind in (kind for kind, is_shown in shown.items() if is_shown):
        item.add_marker(kind)
    if "spark" in kinds(item) and timeout_s(item) < SPARK_TIMEOUT_S:
        item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S), append=False)
    if not kinds(item):
        # In memory alone, or real parts that have files.
        item.add_marker("scenario" if "tmp_path" in fixtures else "unit")


def timeout_s(item: pytest.Item) -> float:
    """Return how long a test may take: what its marker says, the command line, or the project."""
    if (marker := item.get_closest_marker("timeout")) is not None:
        return float(marker.args[0])
    return float(item.config.getoption("timeout") or item.config.getini("timeout"))


def seeds(count: int, *, deep: int) -> list[object]:
    """Return `count` seeds for `make test`, and more, up to `deep`, for `make test-deep` alone."""
    more = (pytest.param(seed, marks=pytest.mark.deep) for seed in range(count, deep))
    return [*range(count), *more]


class Part:
    """One of several parts of a run, such as 2/5. Together they have every test once."""

    def __init__(self, text: str) -> None:
        numbers = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        self.number, self.count = map(int, numbers.groups()) if numbers else (1, 0)
        if self.number > self.count:
            raise pytest.UsageError(f"{text!r} names no part: give 2/5 for the second of five")

    def has(self, nodeid: str) -> bool:
        return crc32(nodeid.encode()) % self.count == self.number - 1


def kinds(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}.intersection(KINDS)
