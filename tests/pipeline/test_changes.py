"""A source or an operator that is not as it was: a named error, and what each choice does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ChangedError, DataError, ExistsError
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.run.job_plan import plan_job
from headrace.pipeline.run.job_run import JobRun, job_payloads, open_record
from headrace.pipeline.run.record import JobRecord, OnChange, Records
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.source.sources import FileSource, TableSource
from tests.pipeline.fake_operators import FakeOperator
from tests.pipeline.jobs import LOCAL, chain, double, numbers, results, run, same


def triple(table: pa.Table) -> pa.Table:
    return pa.table({"n": pc.multiply(table["n"], 3)})


def write(folder: Path, number: int, begin: int) -> None:
    """Write a file of ten rows, and make sure that a file system with coarse times shows it."""
    path = folder / f"{number}.parquet"
    pq.write_table(numbers(10, begin), path)
    os.utime(path, (begin + 1, begin + 1))


def job_of(folder: Path, first: FakeOperator, last: FakeOperator) -> Job:
    return chain(
        FileSource(str(folder), rows_per_unit=5),
        Stage("first", first, LOCAL),
        Stage("last", last, LOCAL),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(3):
        write(folder, number, 10 * number)
    return folder


def stop_after(workspace: hr.Workspace, job: Job, operator: FakeOperator, units: int) -> None:
    """Run a job until an operator has seen so many units."""
    with JobRun(workspace, job) as run:
        operator.before = lambda unit, rows: (
            run.master.stop() if len(operator.seen) >= units else None
        )
        ThreadRunner().run(run)
    operator.before = lambda unit, rows: None


# proves G16
def test_a_changed_operator_is_refused_by_name(workspace: hr.Workspace, folder: Path) -> None:
    run(workspace, job_of(folder, FakeOperator(double), FakeOperator(same)))
    changed = job_of(folder, FakeOperator(triple, version="2"), FakeOperator(same))
    with pytest.raises(ChangedError, match="the operator of stage 'first' has changed; run with"):
        run(workspace, changed)


# proves G16
@pytest.mark.long
def test_resume_goes_on_with_the_changed_operator(workspace: hr.Workspace, folder: Path) -> None:
    first = FakeOperator(double)
    stop_after(workspace, job_of(folder, first, FakeOperator(same)), first, 3)
    second = FakeOperator(triple, version="2")
    changed = job_of(folder, second, FakeOperator(same))
    run(workspace, changed, "resume")
    assert len(first.seen) + len(second.seen) == 6
    assert not first.seen.keys() & second.seen.keys()
    assert len(results(workspace, changed, "last")) == 30
    run(workspace, changed)


# proves G16
@pytest.mark.long
def test_recompute_repeats_what_changed_and_all_below(
    workspace: hr.Workspace, folder: Path
) -> None:
    first, last = FakeOperator(double), FakeOperator(same)
    run(workspace, job_of(folder, first, last))
    changed_last = FakeOperator(triple, version="2")
    changed = job_of(folder, first, changed_last)
    run(workspace, changed, "recompute")
    assert set(first.seen.values()) == {1}
    assert results(workspace, changed, "last") == [6 * n for n in range(30)]
    changed_first = FakeOperator(same, version="2")
    changed = job_of(folder, changed_first, changed_last)
    run(workspace, changed, "recompute")
    assert results(workspace, changed, "last") == [3 * n for n in range(30)]


# proves G16
@pytest.mark.long
def test_restart_repeats_everything(workspace: hr.Workspace, folder: Path) -> None:
    first = FakeOperator(double)
    run(workspace, job_of(folder, first, FakeOperator(same)))
    changed = job_of(folder, first, FakeOperator(triple, version="2"))
    run(workspace, changed, "restart")
    assert set(first.seen.values()) == {2}
    assert results(workspace, changed, "last") == [6 * n for n in range(30)]


# proves G16
def test_recompute_reads_a_file_that_a_resumed_run_left_out(
    workspace: hr.Workspace, folder: Path
) -> None:
    first = FakeOperator(double)
    job = job_of(folder, first, FakeOperator(same))
    run(workspace, job)
    write(folder, 3, 30)
    run(workspace, job, "resume")
    run(workspace, job)
    assert results(workspace, job, "last") == [2 * n for n in range(30)]
    run(workspace, job, "recompute")
    assert set(first.seen.values()) == {1}
    assert results(workspace, job, "last") == [2 * n for n in range(40)]
    run(workspace, job)


# proves G16
def test_a_file_that_a_resumed_run_left_out_may_go_again(
    workspace: hr.Workspace, folder: Path
) -> None:
    first = FakeOperator(double)
    job = job_of(folder, first, FakeOperator(same))
    run(workspace, job)
    write(folder, 3, 30)
    run(workspace, job, "resume")
    (folder / "3.parquet").unlink()
    run(workspace, job)
    run(workspace, job, "recompute")
    assert set(first.seen.values()) == {1}


# proves G16
@pytest.mark.long
def test_an_added_file_is_named_and_recompute_reads_it_alone(
    workspace: hr.Workspace, folder: Path
) -> None:
    first = FakeOperator(double)
    job = job_of(folder, first, FakeOperator(same))
    run(workspace, job)
    write(folder, 3, 30)
    with pytest.raises(ChangedError, match=r"'source' has changed: 1 file added, .*3\.parquet"):
        run(workspace, job)
    run(workspace, job, "recompute")
    assert set(first.seen.values()) == {1}
    assert results(workspace, job, "last") == [2 * n for n in range(40)]
    run(workspace, job)


# proves G16
@pytest.mark.long
def test_a_changed_file_is_named_and_recomputed(workspace: hr.Workspace, folder: Path) -> None:
    job = job_of(folder, FakeOperator(double), FakeOperator(same))
    run(workspace, job)
    write(folder, 1, 100)
    with pytest.raises(ChangedError, match=r"1 file changed, such as .*1\.parquet"):
        run(workspace, job)
    run(workspace, job, "recompute")
    expected = [*range(10), *range(20, 30), *range(100, 110)]
    assert results(workspace, job, "last") == [2 * n for n in expected]


# proves G16
def test_a_file_that_changes_during_a_run_fails_it(workspace: hr.Workspace, folder: Path) -> None:
    job = job_of(folder, FakeOperator(double), FakeOperator(same))
    with JobRun(workspace, job) as begun:
        write(folder, 1, 100)
        ThreadRunner().run(begun)
        with pytest.raises(ChangedError, match=r"1\.parquet has changed since the job planned"):
            begun.summary()


# proves G16
def test_the_order_of_a_second_run_makes_no_difference(workspace: hr.Workspace) -> None:
    """The example of the specification: users 1 to 500 in units of 100, in another order."""
    first = FakeOperator(same)
    table = numbers(500, 1)
    job = chain(TableSource(table, rows_per_unit=100), Stage("users", first, LOCAL))
    stop_after(workspace, job, first, 2)
    reordered = table.take(list(range(400, 500)) + list(range(400)))
    changed = chain(TableSource(reordered, rows_per_unit=100), Stage("users", first, LOCAL))
    with pytest.raises(ChangedError, match="source 'source' has changed"):
        run(workspace, changed)
    run(workspace, changed, "resume")
    assert results(workspace, changed, "users") == list(range(1, 501))


@pytest.mark.long
def test_another_number_of_workers_is_no_change(workspace: hr.Workspace) -> None:
    """As on a machine with more cores: the units stay what they are."""
    operator = FakeOperator(same)
    for workers in (1, 20):
        config = StageConfig(workers=workers)
        job = chain(TableSource(numbers(500, 1), 50), Stage("users", operator, config))
        if workers == 1:
            stop_after(workspace, job, operator, 5)
            assert len(operator.seen) < 10
    assert run(workspace, job).outcome == "done"
    assert set(operator.seen.values()) == {1}
    assert results(workspace, job, "users") == list(range(1, 501))


def test_a_missing_payload_is_named(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(10)), Stage("double", FakeOperator(double)))
    with JobRun(workspace, job) as begun:
        (found,) = [
            info.key for info in workspace.objects.list("pipelines/job") if "/payloads/" in info.key
        ]
        workspace.objects.delete(found)
        ThreadRunner().run(begun)
        with pytest.raises(DataError, match=f"the payload {found} is missing"):
            begun.summary()


# proves G16
def test_of_two_drivers_one_is_refused(workspace: hr.Workspace) -> None:
    job = chain(TableSource(numbers(10)), Stage("double", FakeOperator(double)))
    record = open_record(workspace, job, "refuse")
    records = Records(workspace.objects, job.id)
    with pytest.raises(ExistsError, match="another driver runs job 'job'"):
        records.write(JobRecord(job.id, record.number, "other", 1, {}))
    assert job_payloads(workspace, record)


# proves G15
@pytest.mark.parametrize("before", ["local", "memory"])
def test_a_stage_whose_offsets_mean_something_else_is_not_resumed(
    workspace: hr.Workspace, folder: Path, before: Literal["local", "memory"]
) -> None:
    """The stage below would begin at the first unit again, and have every row twice."""

    def job(backend: Literal["local", "memory"]) -> Job:
        first = Stage("first", FakeOperator(double), StageConfig(queue_backend=backend))
        last = Stage("last", FakeOperator(same), LOCAL)
        return chain(FileSource(str(folder), rows_per_unit=5), first, last)

    after: Literal["local", "memory"] = "memory" if before == "local" else "local"
    run(workspace, job(before))
    with pytest.raises(ChangedError, match=r"stage 'first' .* cannot be resumed; run with"):
        run(workspace, job(after), "resume")
    assert results(workspace, job(before), "last") == [2 * n for n in range(30)]
    run(workspace, job(after), "recompute")
    assert results(workspace, job(after), "last") == [2 * n for n in range(30)]


# proves G16
@pytest.mark.long
@pytest.mark.parametrize("choice", ["recompute", "restart"])
def test_a_driver_that_dies_before_it_lists_new_units_leaves_a_job_that_runs(
    workspace: hr.Workspace, folder: Path, choice: OnChange
) -> None:
    job = job_of(folder, FakeOperator(double), FakeOperator(same))
    run(workspace, job)
    write(folder, 3, 30)
    open_record(workspace, job, "recompute")  # the driver dies here
    write(folder, 4, 40)
    assert len(plan_job(workspace, job).changes) == 1
    run(workspace, job, choice)
    assert results(workspace, job, "last") == [2 * n for n in range(50)]


def test_a_file_that_is_named_in_two_ways_is_read_once(
    workspace: hr.Workspace, folder: Path
) -> None:
    named: list[str | Path] = [
        folder,
        f"{folder}/../{folder.name}/1.parquet",
        os.path.relpath(folder),
    ]
    source = FileSource(named, rows_per_unit=5)
    job = chain(source, Stage("last", FakeOperator(same), LOCAL))
    run(workspace, job)
    assert results(workspace, job, "last") == list(range(30))


def test_a_file_that_is_no_parquet_file_is_named(workspace: hr.Workspace, folder: Path) -> None:
    (folder / "3.parquet").write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"3\.parquet cannot be read as parquet: .*; mend or"):
        run(workspace, job_of(folder, FakeOperator(double), FakeOperator(same)))
