"""Stages that take all rows at once: computed again until they are sealed, and never after."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import ChangedError, UsageError
from headrace.pipeline.contract import OnError, StagePlan
from headrace.pipeline.dead_letters import DeadLetters
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.master.inputs import PARTITIONS_MIN, InputTopic, topics
from headrace.pipeline.run.job_run import JobRun, RunSummary, run_async, sealed_results
from headrace.pipeline.run.record import OnChange
from headrace.pipeline.run.sealed_results import SealedResults
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.source import source_topics
from headrace.pipeline.source.source_units import TableUnit
from headrace.pipeline.source.sources import FileSource, TableSource, UnitSource
from headrace.queues.local_backend import LocalBackend
from tests.pipeline.fake_operators import FakeOperator
from tests.pipeline.jobs import LOCAL, MEMORY, double, numbers, results, same
from tests.pipeline.test_changes import write


class WholeOperator:
    """Computes from the tables of its upstreams, in the driver, without Spark."""

    expensive = False
    on_error: OnError = "fail"
    takes_all = True

    def __init__(self, function: Callable[..., pa.Table], version: str = "1") -> None:
        self.function = function
        self.calls = 0
        self._version = version

    def fingerprint(self) -> str:
        return self._version

    async def open(self, context: Any) -> NoReturn:
        raise AssertionError("it has no workers")

    def compute(self, tables: Sequence[pa.Table]) -> pa.Table:
        self.calls += 1
        return self.function(*tables)


class SomeStages:
    """A run of which a runner sees some stages."""

    def __init__(self, run: JobRun, stages: Sequence[StagePlan]) -> None:
        self._run = run
        self.stages = stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def running_sum(*tables: pa.Table) -> pa.Table:
    """Return a table that depends on all rows: in units, the sums of the smallest so far."""
    values = sorted(n for table in tables for n in table["n"].to_pylist())
    return pa.table({"n": pc.cumulative_sum(pa.array(values, pa.int64()))})


def expected_sums(values: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(sorted(values)))


def run(workspace: hr.Workspace, job: Job, on_change: OnChange = "refuse") -> RunSummary:
    with JobRun(workspace, job, on_change=on_change) as begun:
        for phase in sorted({plan.phase for plan in begun.stages}):
            plans = [plan for plan in begun.stages if plan.phase == phase]
            for plan in plans:
                if plan.takes_all and not begun.is_over(plan.stage):
                    compute(begun, plan.stage)
            ThreadRunner().run(SomeStages(begun, [each for each in plans if not each.takes_all]))
        return begun.summary()


def compute(begun: JobRun, stage: str) -> None:
    whole = begun.whole_stage(stage)
    taken = run_async(whole.take())
    if taken is None:
        return
    tables = [
        pa.concat_tables([begun.payloads.get(each.data_ref) for each in messages])
        for messages in taken.messages.values()
    ]
    operator = begun.job.stages[stage].operator
    assert isinstance(operator, WholeOperator)
    run_async(whole.seal(taken, units(begun, stage, operator.compute(tables))))


def units(begun: JobRun, stage: str, table: pa.Table, size: int = 4) -> list[TableUnit]:
    return [
        TableUnit(begun.payloads.put(stage, f"u{first}", part), first, part.num_rows, str(first))
        for first in range(0, table.num_rows, size)
        for part in [table.slice(first, size)]
    ]


def make_job(
    whole: WholeOperator,
    *,
    source: UnitSource | None = None,
    first: FakeOperator | None = None,
    last: FakeOperator | None = None,
) -> Job:
    return (
        Job("job")
        .add_stage(Stage("source", source or TableSource(numbers(30), 5)))
        .add_stage(Stage("first", first or FakeOperator(same), LOCAL), ["source"])
        .add_stage(Stage("sums", whole), ["first"])
        .add_stage(Stage("last", last or FakeOperator(double), LOCAL), ["sums"])
    )


def check(workspace: hr.Workspace, job: Job, values: Sequence[int]) -> None:
    assert results(workspace, job, "last") == [2 * n for n in expected_sums(values)]


def test_it_is_computed_once_from_all_rows(workspace: hr.Workspace) -> None:
    whole, last = WholeOperator(running_sum), FakeOperator(double)
    job = make_job(whole, last=last)
    assert run(workspace, job).outcome == "done"
    assert run(workspace, job).outcome == "done"
    assert whole.calls == 1
    assert set(last.seen.values()) == {1}
    check(workspace, job, range(30))


@pytest.mark.long
def test_a_crash_before_the_seal_computes_it_again(workspace: hr.Workspace) -> None:
    def die(rows: pa.Table) -> pa.Table:
        raise RuntimeError("killed")

    first, whole = FakeOperator(same), WholeOperator(die)
    job = make_job(whole, first=first)
    with pytest.raises(RuntimeError):
        run(workspace, job)
    whole.function = running_sum
    run(workspace, job)
    assert whole.calls == 2
    assert set(first.seen.values()) == {1}
    check(workspace, job, range(30))


# proves G15
@pytest.mark.long
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_crash_after_the_seal_never_does(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """Whether nothing, some or all of its units are in the topic."""
    monkeypatch.setattr(source_topics, "PART_UNITS", 4)
    whole, last = WholeOperator(running_sum), FakeOperator(double)
    job = make_job(whole, last=last)
    produce = LocalBackend.produce_and_commit
    left = [parts]

    async def fail(self: LocalBackend, outputs: Any, commit: Any) -> Any:
        if commit.group.startswith("plan.") and ".sums." in commit.topic:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("killed")
        return await produce(self, outputs, commit)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "produce_and_commit", fail)
        patch.setattr(SealedResults, "_mark_filled", _die)
        with pytest.raises(RuntimeError):
            run(workspace, job)
    assert not last.seen
    run(workspace, job)
    assert whole.calls == 1
    assert set(last.seen.values()) == {1}
    check(workspace, job, range(30))


def _die(*_: Any) -> NoReturn:
    raise RuntimeError("killed")


def test_the_first_complete_attempt_wins(workspace: hr.Workspace) -> None:
    """A driver that was given up seals its result while another computes its own."""
    job = make_job(WholeOperator(running_sum))
    with JobRun(workspace, job) as begun:
        ThreadRunner().run(SomeStages(begun, begun.stages[:1]))
        zombie, other = begun.whole_stage("sums"), begun.whole_stage("sums")
        taken = run_async(zombie.take())
        assert taken is not None
        run_async(zombie.seal(taken, units(begun, "sums", numbers(6))))
        later = sealed_results(workspace, begun.record)
        stored = later.store("sums", {}, units(begun, "sums", numbers(3)))
        assert stored.rows == 6
        assert run_async(other.take()) is None
        ThreadRunner().run(SomeStages(begun, begun.stages[2:]))
        assert begun.summary().outcome == "done"
    assert results(workspace, job, "last") == [2 * n for n in range(6)]


@pytest.mark.long
def test_rows_that_come_after_the_seal_are_refused_by_name_and_recomputed(
    workspace: hr.Workspace,
) -> None:
    """Dead letters that are replayed go through the stage above, and so reach a sealed one."""
    whole = WholeOperator(running_sum)

    def make(is_mended: bool) -> hr.Pipeline:
        def check_row(row: dict[str, Any]) -> dict[str, Any]:
            if row["n"] == 7 and not is_mended:
                raise ValueError("seven")
            return row

        return (
            hr.pipeline("job", workspace)
            .source(numbers(30), rows_per_unit=5)
            .map(check_row, name="first", version="1", on_error="dead_letter")
        )

    def job_of(is_mended: bool) -> Job:
        job = make(is_mended).job
        job.add_stage(Stage("sums", whole), ["first"])
        return job.add_stage(Stage("last", FakeOperator(double), LOCAL), ["sums"])

    run(workspace, job_of(False))
    values = [n for n in range(30) if n != 7]
    check(workspace, job_of(False), values)
    assert asyncio.run(_replay(workspace)) == 1
    with pytest.raises(ChangedError, match=r"the input of stage 'sums' has grown since .*compute"):
        run(workspace, job_of(True))
    with pytest.raises(ChangedError, match="the input of stage 'sums' has grown since"):
        run(workspace, job_of(True))
    run(workspace, job_of(True), "recompute")
    assert whole.calls == 2
    check(workspace, job_of(True), range(30))
    run(workspace, job_of(True))


async def _replay(workspace: hr.Workspace) -> int:
    async with LocalBackend(workspace) as local:
        return await DeadLetters(workspace, "job", local).replay("first")


@pytest.mark.long
def test_an_added_file_computes_it_again_and_repeats_nothing_above(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(3):
        write(folder, number, 10 * number)
    first, whole = FakeOperator(same), WholeOperator(running_sum)
    job = make_job(whole, source=FileSource(str(folder), 5), first=first)
    run(workspace, job)
    write(folder, 3, 30)
    with pytest.raises(ChangedError, match="1 file added"):
        run(workspace, job)
    run(workspace, job, "recompute")
    assert set(first.seen.values()) == {1}
    assert whole.calls == 2
    check(workspace, job, range(40))


@pytest.mark.long
def test_a_changed_function_is_refused_and_recomputed(workspace: hr.Workspace) -> None:
    run(workspace, make_job(WholeOperator(running_sum)))
    changed = make_job(WholeOperator(same, version="2"))
    with pytest.raises(ChangedError, match="the operator of stage 'sums' has changed"):
        run(workspace, changed)
    run(workspace, changed, "recompute")
    assert results(workspace, changed, "last") == [2 * n for n in range(30)]


def test_several_upstreams_are_all_read(workspace: hr.Workspace) -> None:
    whole = WholeOperator(running_sum)
    job = (
        Job("job")
        .add_stage(Stage("left", TableSource(numbers(10), 3)))
        .add_stage(Stage("right", TableSource(numbers(10, 100), 4)))
        .add_stage(Stage("sums", whole), ["left", "right"])
        .add_stage(Stage("last", FakeOperator(double), LOCAL), ["sums"])
    )
    run(workspace, job)
    check(workspace, job, [*range(10), *range(100, 110)])


@pytest.mark.parametrize(("above", "partitions"), [(1, PARTITIONS_MIN), (100, 100)])
def test_its_output_has_partitions_for_many_workers(above: int, partitions: int) -> None:
    job = make_job(WholeOperator(running_sum))
    names = {stage: stage for stage in job.stages}
    found = topics(job, {"source": InputTopic("source", True, above)}, names)
    assert (found["first"].partitions, found["sums"].partitions) == (above, partitions)
    assert found["last"].partitions == partitions


def test_what_it_reads_must_be_durable() -> None:
    job = Job("job").add_stage(Stage("source", TableSource(numbers(1))))
    job.add_stage(Stage("first", FakeOperator(same), MEMORY), ["source"])
    job.add_stage(Stage("sums", WholeOperator(same)), ["first"])
    with pytest.raises(
        UsageError, match=r"'sums' takes all rows .* output of 'first' is on memory"
    ):
        job.validate()


def test_a_stage_on_memory_cannot_wait_for_it() -> None:
    """It would fill up, and the stage above it would never be done."""
    job = Job("job").add_stage(Stage("source", TableSource(numbers(1))))
    job.add_stage(Stage("light", FakeOperator(same), MEMORY), ["source"])
    job.add_stage(Stage("sums", WholeOperator(same)), ["source"])
    job.add_stage(Stage("last", FakeOperator(same), LOCAL), ["light", "sums"])
    with pytest.raises(UsageError, match=r"'light' is on memory, and 'last', .* waits for 'sums'"):
        job.validate()


def test_threads_cannot_run_it(workspace: hr.Workspace) -> None:
    with (
        JobRun(workspace, make_job(WholeOperator(same))) as begun,
        pytest.raises(UsageError, match="stage 'sums' needs Spark"),
    ):
        ThreadRunner().run(begun)
