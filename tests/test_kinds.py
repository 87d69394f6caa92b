"""Every test has a kind, and a test that starts Spark says so: `make test-fast` leaves it out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kinds import KINDS, kinds

PROJECT = Path(__file__).parents[1]
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text()


def test_every_test_of_this_run_has_a_kind(request: pytest.FixtureRequest) -> None:
    assert not [each.nodeid for each in request.session.items if not kinds(each)]


def test_every_kind_is_registered_and_documented(request: pytest.FixtureRequest) -> None:
    registered = {line.partition(":")[0] for line in request.config.getini("markers")}
    assert {*KINDS, "deep"} <= registered
    for kind in (*KINDS, "deep"):
        assert re.search(rf"^\| {kind} \|", CONTRIBUTING, flags=re.M), kind


def test_whatever_starts_spark_says_so(request: pytest.FixtureRequest) -> None:
    """A test that gives a process the time that Spark needs starts Spark in it."""
    starts_spark = [
        each
        for each in request.session.items
        if isinstance(each, pytest.Function) and "SPARK_S" in each.function.__code__.co_names
    ]
    assert not [each.nodeid for each in starts_spark if "spark" not in kinds(each)]
