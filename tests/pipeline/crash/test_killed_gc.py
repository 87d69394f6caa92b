"""Whoever is killed while a job's garbage is freed, or the job is deleted, leaves a whole job."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.pipeline.status.garbage import collect_garbage, find_garbage
from headrace.pipeline.status.job_catalog import describe_job
from tests.pipeline.crash.killed_gc import JOB, ROWS, AddOne, AddTwo, make, work

pytestmark = pytest.mark.crash

PATIENCE_S = 120.0
EXPECTED = [n + 2 for n in range(ROWS)]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose job was restarted, and of which a stage was recomputed."""
    directory = tmp_path_factory.mktemp("used") / "data"
    with hr.open(directory) as workspace:
        make(workspace, AddTwo).run()
        make(workspace, AddOne).run(on_change="restart")
        make(workspace, AddTwo).run(on_change="recompute")
        make(workspace, AddOne).run(on_change="recompute")
        assert len(find_garbage(workspace, JOB).topics) > 4
    return directory


def moments(used: Path, kind: str, tmp_path: Path) -> int:
    shutil.copytree(used, tmp_path / "counted")
    with hr.open(tmp_path / "counted") as workspace:
        return work(workspace, kind, None)


def check_killed(used: Path, kind: str, number: int, directory: Path) -> None:
    shutil.copytree(used, directory)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.crash.killed_gc", str(directory), kind, str(number)],
        timeout=PATIENCE_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with hr.open(directory) as workspace:
        pipeline = make(workspace, AddOne)
        summary = pipeline.run()
        assert summary.outcome == "done"
        assert sorted(pipeline.collect()["n"].to_pylist()) == EXPECTED
        if kind == "gc":
            assert summary.cost == 0, f"paid again after a kill before step {number}"
            # What stages in the middle have produced is whole, too.
            assert sum(pipeline.collect("first")["n"].to_pylist()) == sum(EXPECTED) - ROWS
        collect_garbage(workspace, JOB)
        assert find_garbage(workspace, JOB).is_empty
        assert all(topic.is_current for topic in describe_job(workspace, JOB).topics)
        assert pipeline.run().cost == 0
        assert sorted(pipeline.collect()["n"].to_pylist()) == EXPECTED


@pytest.mark.parametrize("kind", ["gc", "delete"])
def test_a_kill_at_some_moments_changes_no_result(used: Path, kind: str, tmp_path: Path) -> None:
    last = moments(used, kind, tmp_path) - 1
    for number in (0, last // 2, last):
        check_killed(used, kind, number, tmp_path / f"{number}")


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["gc", "delete"])
def test_a_kill_at_any_moment_changes_no_result(used: Path, kind: str, tmp_path: Path) -> None:
    for number in range(moments(used, kind, tmp_path)):
        check_killed(used, kind, number, tmp_path / f"{number}")


def test_the_budget_still_counts_results_that_were_freed(used: Path, tmp_path: Path) -> None:
    shutil.copytree(used, tmp_path / "data")
    with hr.open(tmp_path / "data") as workspace:
        before = make(workspace, AddOne).run().cost_in_all
        collect_garbage(workspace, JOB)
        assert make(workspace, AddOne).run().cost_in_all == before
        # The results of the other operator are gone, so that it is paid again.
        again = make(workspace, AddTwo).run(on_change="recompute")
        assert again.cost == ROWS // 5
        assert again.cost_in_all == before + again.cost
        collect_garbage(workspace, JOB)
        spent = again.cost_in_all
        paused = make(workspace, AddOne, budget=spent).run(on_change="recompute")
        assert paused.outcome == "paused"
