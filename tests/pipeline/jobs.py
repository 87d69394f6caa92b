"""Small jobs for tests, and what they must produce."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.run.job_results import read_results
from headrace.pipeline.run.job_run import JobRun, RunSummary
from headrace.pipeline.run.record import OnChange
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.source.sources import UnitSource
from tests.pipeline.fake_operators import Killed

MEMORY = StageConfig(queue_backend="memory", workers=2)
LOCAL = StageConfig(workers=2)


def numbers(count: int, begin: int = 0) -> pa.Table:
    return pa.table({"n": pa.array(range(begin, begin + count), pa.int64())})


def same(table: pa.Table) -> pa.Table:
    return table


def double(table: pa.Table) -> pa.Table:
    return pa.table({"n": pc.multiply(table["n"], 2)})


def keep_fours(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(pc.bit_wise_and(table["n"], 3), 0))


def run(workspace: hr.Workspace, job: Job, on_change: OnChange = "refuse") -> RunSummary:
    """Run a job with threads, which may be killed, until its run is over."""
    with JobRun(workspace, job, on_change=on_change) as run:
        ThreadRunner((Killed,)).run(run)
        return run.summary()


def results(workspace: hr.Workspace, job: Job, stage: str) -> list[int]:
    """Return what a stage has produced, sorted."""
    found = read_results(workspace, job, stage)
    return sorted(found["n"].to_pylist()) if found.num_rows else []


def chain(source: UnitSource, *stages: Stage, name: str = "job") -> Job:
    """Return a job whose stages read one from another."""
    job = Job(name).add_stage(Stage("source", source))
    above = "source"
    for stage in stages:
        job.add_stage(stage, [above])
        above = stage.stage_id
    return job
