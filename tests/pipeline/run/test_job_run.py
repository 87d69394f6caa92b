"""Whole jobs, with workers in threads, on real backends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.clock import ZERO, ClockSource
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.source.sources import FileSource, TableSource
from tests.pipeline.fake_operators import FakeOperator
from tests.pipeline.jobs import (
    LOCAL,
    MEMORY,
    chain,
    double,
    keep_fours,
    numbers,
    results,
    run,
    same,
)


@pytest.mark.long
def test_a_table_passes_a_durable_stage_and_one_on_memory(workspace: hr.Workspace) -> None:
    job = chain(
        TableSource(numbers(1000), rows_per_unit=10),
        Stage("double", FakeOperator(double), LOCAL),
        Stage("filter", FakeOperator(keep_fours), MEMORY),
        Stage("last", FakeOperator(same), LOCAL),
    )
    summary = run(workspace, job)
    assert summary.outcome == "done"
    assert results(workspace, job, "last") == [2 * n for n in range(1000) if n % 2 == 0]
    assert summary.stages["last"].rows_out == 500


def test_files_are_read_by_the_first_stage(workspace: hr.Workspace, tmp_path: Path) -> None:
    for n in range(3):
        pq.write_table(numbers(100, 100 * n), tmp_path / f"{n}.parquet", row_group_size=30)
    source = FileSource(str(tmp_path / "*.parquet"), rows_per_unit=40)
    job = chain(source, Stage("double", FakeOperator(double)))
    run(workspace, job)
    assert results(workspace, job, "double") == [2 * n for n in range(300)]


def test_a_second_run_has_nothing_to_do(workspace: hr.Workspace) -> None:
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(100), rows_per_unit=10), Stage("double", operator))
    run(workspace, job)
    assert run(workspace, job).stages["double"].messages == 0
    assert set(operator.seen.values()) == {1}
    assert results(workspace, job, "double") == [2 * n for n in range(100)]


@pytest.mark.long
def test_several_upstreams_are_all_read(workspace: hr.Workspace) -> None:
    """Also if two paths lead from one topic to one stage, through memory or not."""
    job = Job("diamond").add_stage(Stage("source", TableSource(numbers(60), rows_per_unit=5)))
    job.add_stage(Stage("left", FakeOperator(double), MEMORY), ["source"])
    job.add_stage(Stage("right", FakeOperator(keep_fours), LOCAL), ["source"])
    job.add_stage(Stage("near", FakeOperator(same), MEMORY), ["left", "right"])
    job.add_stage(Stage("last", FakeOperator(same), LOCAL), ["near", "source"])
    run(workspace, job)
    left, right = [2 * n for n in range(60)], list(range(0, 60, 4))
    assert results(workspace, job, "last") == sorted([*left, *right, *range(60)])


def test_an_empty_source_is_done_at_once(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(0)), Stage("double", FakeOperator(double)))
    assert run(workspace, job).outcome == "done"
    assert results(workspace, job, "double") == []


@pytest.mark.long
def test_a_clock_that_goes_backwards_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps back by an hour in the middle of the first run, and by a day before the second."""
    real, offset_s = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + offset_s[0] * 10**9)
    monkeypatch.setattr(ClockSource.__init__, "__defaults__", (time.time_ns, ZERO))
    operator = FakeOperator(double)
    job = chain(
        TableSource(numbers(200), rows_per_unit=2),
        Stage("double", operator, LOCAL),
        Stage("filter", FakeOperator(keep_fours), MEMORY),
        Stage("last", FakeOperator(same), LOCAL),
    )
    with hr.open(tmp_path / "data") as workspace, JobRun(workspace, job) as begun:

        def jump(unit: str, rows: Sequence[int]) -> None:
            if len(operator.seen) == 20:
                offset_s[0] = -3600
            if len(operator.seen) == 60:
                begun.master.stop()

        operator.before = jump
        ThreadRunner().run(begun)
        assert begun.summary().outcome == "stopped"
    operator.before = lambda unit, rows: None
    offset_s[0] = -86400
    with hr.open(tmp_path / "data") as workspace:
        assert run(workspace, job).outcome == "done"
        assert results(workspace, job, "last") == [2 * n for n in range(200) if n % 2 == 0]
