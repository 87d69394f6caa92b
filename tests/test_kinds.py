"""Every test has a kind, and a test that starts Spark says so: `make test-fast` leaves it out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from tests.kinds import KINDS, SPARK_TIMEOUT_S, Part, kinds, timeout_s
from tests.processor_time import unmarked

PROJECT = Path(__file__).parents[1]
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text()


def test_every_test_of_this_run_has_a_kind(request: pytest.FixtureRequest) -> None:
    assert not [each.nodeid for each in request.session.items if not kinds(each)]


def test_every_kind_is_registered_and_documented(request: pytest.FixtureRequest) -> None:
    registered = {line.partition(":")[0] for line in request.config.getini("markers")}
    assert {*KINDS, "long", "deep"} <= registered
    for kind in (*KINDS, "long", "deep"):
        assert re.search(rf"^\| {kind} \|", CONTRIBUTING, flags=re.M), kind


def test_a_test_that_takes_long_and_is_not_marked_is_named() -> None:
    def report(name: str, processor_s: float, *marks: str) -> pytest.TestReport:
        keywords: dict[str, Literal[1]] = dict.fromkeys((name, *marks), 1)
        spent = [("other", "x"), ("processor_s", processor_s)]
        return pytest.TestReport(
            name, (name, 1, name), keywords, "passed", None, "call", user_properties=spent
        )

    reports = [
        report("short", 0.4),
        report("slow", 0.6),
        report("slower", 2.0, "property"),
        report("marked", 9.0, "long"),
        report("crashing", 9.0, "crash"),
    ]
    assert unmarked(reports) == [("slower", 2.0), ("slow", 0.6)]


def test_the_parts_of_a_run_have_every_test_once(request: pytest.FixtureRequest) -> None:
    nodeids = [each.nodeid for each in request.session.items]
    parts = [Part(f"{number}/3") for number in (1, 2, 3)]
    assert all(sum(part.has(nodeid) for part in parts) == 1 for nodeid in nodeids)
    assert all(Part("1/1").has(nodeid) for nodeid in nodeids)
    many = [f"tests/test_x.py::test_y[{number}]" for number in range(300)]
    assert all(60 < sum(map(part.has, many)) < 140 for part in parts)


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "3", "1/0", "a/b", "-1/3", "1/3/5"])
def test_what_names_no_part_is_refused(wrong: str) -> None:
    with pytest.raises(pytest.UsageError, match="names no part: give 2/5 for the second of five"):
        Part(wrong)


def test_whatever_starts_spark_says_so(request: pytest.FixtureRequest) -> None:
    """A test that gives a process the time that Spark needs starts Spark in it."""
    starts_spark = [
        each
        for each in request.session.items
        if isinstance(each, pytest.Function) and "SPARK_S" in each.function.__code__.co_names
    ]
    assert not [each.nodeid for each in starts_spark if "spark" not in kinds(each)]


def test_whatever_starts_spark_has_the_time_for_it(request: pytest.FixtureRequest) -> None:
    for each in request.session.items:
        if "spark" in kinds(each):
            assert timeout_s(each) >= SPARK_TIMEOUT_S, each.nodeid
