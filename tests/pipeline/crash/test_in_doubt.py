"""A process dies when a call is paid and its result is not recorded: what each policy does then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import UnitError
from headrace.pipeline.ledger.totals import CallInDoubt, StageTotals
from headrace.pipeline.run.job_run import JobRun, RunSummary
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.testing.paid_server import PaidServer
from tests.pipeline.crash.paid_job import DEADLY_ROW, ROWS, make
from tests.pipeline.crash.process_runner import PROJECT, ProcessRunner


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaidServer]:
    with PaidServer(tmp_path / "bill") as server:
        yield server


@pytest.fixture
def honest_server(tmp_path: Path) -> Iterator[PaidServer]:
    with PaidServer(tmp_path / "bill", "--honour-keys") as server:
        yield server


def run_driver_until_it_dies(path: Path, server: PaidServer, policy: str) -> None:
    driver = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.crash.paid_job", str(path), server.url, policy],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"},
        timeout=300,
    )
    assert driver.returncode == -signal.SIGKILL
    assert server.paid()[str(DEADLY_ROW)] == 1


def run_to_the_end(
    workspace: hr.Workspace, pipeline: hr.Pipeline, runner: ThreadRunner | ProcessRunner
) -> tuple[RunSummary, StageTotals, list[CallInDoubt]]:
    """Run it; return its summary, and the ledger's totals and calls in doubt at its end."""
    with JobRun(workspace, pipeline.job) as run:
        before = calls_in_doubt(run)
        runner.run(run)
        assert run.services.ledger is not None
        (totals,) = run.services.ledger.totals().result().values()
        assert calls_in_doubt(run) == []
        return run.summary(), totals, before


def calls_in_doubt(run: JobRun) -> list[CallInDoubt]:
    assert run.services.ledger is not None
    return run.services.ledger.calls_in_doubt().result()


def check_results(pipeline: hr.Pipeline) -> None:
    assert sorted(pipeline.collect()["n"].to_pylist()) == list(range(ROWS))


# proves G17
def test_a_call_in_doubt_is_sent_again_with_its_key_and_paid_once(
    tmp_path: Path, honest_server: PaidServer
) -> None:
    run_driver_until_it_dies(tmp_path / "data", honest_server, "resend")
    with hr.open(tmp_path / "data") as workspace:
        pipeline = make(workspace, honest_server.url, "resend")
        summary, totals, in_doubt = run_to_the_end(workspace, pipeline, ThreadRunner())
        assert in_doubt, "the ledger knows what may have been paid"
        check_results(pipeline)
    assert honest_server.repeated == 0
    assert set(honest_server.paid_by_key().values()) == {1}
    assert (summary.cost_in_all, totals.results) == (ROWS, ROWS)
    assert (totals.doubts, totals.resends, totals.retries) == (len(in_doubt), len(in_doubt), 0)


# proves G17
def test_a_call_in_doubt_is_retried_and_what_it_may_cost_is_counted(
    tmp_path: Path, server: PaidServer
) -> None:
    run_driver_until_it_dies(tmp_path / "data", server, "retry")
    with hr.open(tmp_path / "data") as workspace:
        pipeline = make(workspace, server.url, "retry")
        summary, totals, in_doubt = run_to_the_end(workspace, pipeline, ThreadRunner())
        check_results(pipeline)
    assert server.paid()[str(DEADLY_ROW)] == 2
    assert 1 <= server.repeated <= totals.retries == len(in_doubt) == totals.doubts
    assert summary.cost_in_all == ROWS
    assert totals.spent_in_doubt == totals.retries * 1_000_000_000


# proves G17
def test_a_call_in_doubt_is_held_until_somebody_decides(
    tmp_path: Path, honest_server: PaidServer
) -> None:
    run_driver_until_it_dies(tmp_path / "data", honest_server, "hold")
    with hr.open(tmp_path / "data") as workspace:
        for _ in range(2):
            with pytest.raises(UnitError, match=r"is in doubt, and the stage holds such calls"):
                make(workspace, honest_server.url, "hold").run()
        assert honest_server.paid()[str(DEADLY_ROW)] == 1
        pipeline = make(workspace, honest_server.url, "resend")
        assert pipeline.run().outcome == "done"
        check_results(pipeline)
    assert honest_server.repeated == 0


# proves G17
def test_a_worker_that_dies_leaves_a_call_in_doubt_to_the_next(
    workspace: hr.Workspace, honest_server: PaidServer
) -> None:
    pipeline = make(workspace, honest_server.url, "resend")
    summary, totals, _ = run_to_the_end(workspace, pipeline, ProcessRunner())
    assert summary.outcome == "done"
    assert summary.stages["pay"].deaths == 1
    check_results(pipeline)
    assert honest_server.repeated == 0
    assert totals.resends == totals.doubts >= 1
