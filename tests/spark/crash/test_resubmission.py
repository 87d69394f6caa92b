"""An application is killed in the middle of a map stage, and submitted again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import headrace as hr
from headrace.exchange import verify
from headrace.plan.stage_tasks import number_of
from headrace.testing.crash import Child, eventually
from tests.spark.crash.counted_query import (
    GO,
    UNITS,
    Outcome,
    counted_query,
    expected,
    units_called,
)
from tests.spark.crash.crashing_task import WAIT_S
from tests.spark.crash.process_tree import kill_all

pytestmark = pytest.mark.timeout(900)
"""Each of them starts two applications of Spark."""

CORES, OTHER_CORES = 2, 3
DRIVER = """
from tests.spark.crash.counted_query import CountedDriver
driver = CountedDriver(life, master)
"""


def submit(folder: Path, cores: int) -> Outcome:
    """Run the query to its end, in an application of its own."""
    given = {"life": folder / f"life-{cores}", "master": f"local[{cores},4]"}
    with Child(DRIVER, **given) as child:
        outcome: Outcome = child.run("driver.run(folder, 0)", WAIT_S, folder=folder)
        kill_all(child.pid, WAIT_S)
    return outcome


# proves G21
@pytest.mark.parametrize(
    "percent",
    [pytest.param(25, marks=pytest.mark.deep), 50, pytest.param(90, marks=pytest.mark.deep)],
)
def test_an_application_that_is_submitted_again_repeats_only_what_was_in_flight(
    tmp_path: Path, percent: int
) -> None:
    called_before = UNITS * percent // 100
    with Child(DRIVER, life=tmp_path / "killed", master=f"local[{CORES},4]") as child:
        waits_at = called_before - CORES + 1
        child.start("driver.run(folder, waits_at)", folder=tmp_path, waits_at=waits_at)
        eventually(
            lambda: len(units_called(tmp_path)) >= called_before, WAIT_S, "calls in every slot"
        )
        kill_all(child.pid, WAIT_S)
    in_flight = CORES
    assert len(units_called(tmp_path)) == called_before, "every slot waits in a call"
    (tmp_path / GO).touch()

    outcome = submit(tmp_path, OTHER_CORES)

    calls = Counter(units_called(tmp_path))
    assert sorted(calls) == list(range(UNITS))
    assert calls.total() - UNITS <= in_flight
    assert (outcome.computed, outcome.reused) == (
        UNITS - called_before + in_flight,
        called_before - in_flight,
    )
    assert outcome.rows == expected()
    with hr.open(tmp_path / "workspace") as workspace:
        assert verify(workspace.objects, number_of("query", "counted")).damages == []
        undisturbed = counted_query(workspace, tmp_path, 0).run("undisturbed")
        assert undisturbed.table().sort_by("key").to_pylist() == outcome.rows
