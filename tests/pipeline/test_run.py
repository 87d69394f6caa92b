"""Whole jobs, with workers in threads, on real backends."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.results import read_results
from headrace.pipeline.run import JobRun, RunSummary
from headrace.pipeline.source.sources import FileSource, Source, TableSource
from headrace.pipeline.thread_runner import ThreadRunner
from tests.pipeline.fake_operators import FakeOperator, Killed

MEMORY = StageConfig(queue_backend="memory", workers=2)


def numbers(count: int, begin: int = 0) -> pa.Table:
    return pa.table({"n": pa.array(range(begin, begin + count), pa.int64())})


def double(table: pa.Table) -> pa.Table:
    return pa.table({"n": pc.multiply(table["n"], 2)})


def keep_fours(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(pc.bit_wise_and(table["n"], 3), 0))


def run(workspace: hr.Workspace, job: Job, **options: object) -> RunSummary:
    with JobRun(workspace, job, **options) as run:  # type: ignore[arg-type]
        ThreadRunner((Killed,)).run(run)
        return run.summary()


def results(workspace: hr.Workspace, job: Job, stage: str) -> list[int]:
    return sorted(read_results(workspace, job, stage)["n"].to_pylist())


def chain(source: Source, *stages: Stage, name: str = "job") -> Job:
    job = Job(name).add_stage(Stage("source", source))
    above = "source"
    for stage in stages:
        job.add_stage(stage, [above])
        above = stage.stage_id
    return job


@pytest.fixture
def workspace(tmp_path: Path) -> hr.Workspace:
    return hr.open(tmp_path / "data")


def test_a_table_passes_a_durable_stage_and_one_on_memory(workspace: hr.Workspace) -> None:
    job = chain(
        TableSource(numbers(1000), rows_per_unit=10),
        Stage("double", FakeOperator(double), StageConfig(workers=2)),
        Stage("filter", FakeOperator(keep_fours), MEMORY),
        Stage("last", FakeOperator(lambda table: table), StageConfig(workers=2)),
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
