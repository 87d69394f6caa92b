"""The driver is killed while the tasks of a shuffle run: what the next run finds, and deletion."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.exchange.cleanup.pinned_stage import list_pins, now_ms
from headrace.pipeline.run import message_scan
from headrace.pipeline.run.shuffle_files import list_shuffle_files
from headrace.pipeline.status.garbage import delete_job
from tests.pipeline.crash.killed_shuffle import JOB, SEALING, UNITS, bill_of, make
from tests.pipeline.crash.process_runner import PROJECT
from tests.pipeline.orders import ROWS, in_order, totals


@pytest.fixture(autouse=True)
def tasks_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo at the end what `make` sets."""
    monkeypatch.setattr(message_scan, "TASK_ROWS", message_scan.TASK_ROWS)


def run_until_it_dies(directory: Path, point: int | str) -> None:
    driver = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.crash.killed_shuffle", directory, str(point)],
        cwd=PROJECT,
        timeout=300,
        check=False,
    )
    assert driver.returncode == -signal.SIGKILL


def check_paid_once(workspace: hr.Workspace) -> None:
    assert sorted(map(int, bill_of(workspace).read_text().split())) == list(range(ROWS))


# proves G17, G21
@pytest.mark.parametrize("outputs", [4, UNITS + 1])
def test_a_driver_that_dies_in_a_shuffle_repeats_no_call_and_no_published_task(
    tmp_path: Path, outputs: int
) -> None:
    """On the map side, and on the reduce side. The next run has other workers."""
    run_until_it_dies(tmp_path / "data", outputs)
    with hr.open(tmp_path / "data") as workspace:
        check_paid_once(workspace)
        pipeline = make(workspace, workers=3)
        assert pipeline.plan().stages[1].tasks_published == outputs
        summary = pipeline.run()
        assert (summary.outcome, summary.cost) == ("done", 0)
        check_paid_once(workspace)
        progress = pipeline.status().progress["group-by"]
        assert (progress.tasks, progress.tasks_reused) == (UNITS + 3, outputs)
        assert in_order(pipeline.collect().to_pylist()) == totals()


# proves G15, G17
@pytest.mark.parametrize("point", SEALING)
def test_a_driver_that_dies_while_it_seals_a_result_computes_no_task_again(
    tmp_path: Path, point: str
) -> None:
    run_until_it_dies(tmp_path / "data", point)
    with hr.open(tmp_path / "data") as workspace:
        pipeline = make(workspace, workers=1)
        assert pipeline.plan().stages[1].tasks_published == UNITS + 3
        is_sealed = point in SEALING[2:]
        seals = [each for each in workspace.objects.list("pipelines") if "/seal" in each.key]
        assert len(seals) == is_sealed
        summary = pipeline.run()
        assert (summary.outcome, summary.cost) == ("done", 0)
        check_paid_once(workspace)
        progress = pipeline.status().progress["group-by"]
        tasks = 0 if is_sealed else UNITS + 3
        assert (progress.tasks, progress.tasks_reused) == (tasks, tasks)
        assert in_order(pipeline.collect().to_pylist()) == totals()


def test_a_job_is_deleted_with_the_files_that_a_killed_run_has_pinned(tmp_path: Path) -> None:
    run_until_it_dies(tmp_path / "data", 4)
    with hr.open(tmp_path / "data") as workspace:
        (files,) = list_shuffle_files(workspace.objects, JOB)
        assert list_pins(workspace.objects, files.query_id, now_ms())
        delete_job(workspace, JOB)
        assert list(workspace.objects.list("shuffle")) == []
        assert list(workspace.objects.list("pipelines")) == []
