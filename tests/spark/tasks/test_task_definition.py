"""Tasks: what is committed goes through the function once, whatever ends on the way."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udf import _wrap_function

import headrace
from headrace.errors import PeerLostError, UsageError
from headrace.spark.sinks.contract import CheckpointId, Sink
from headrace.spark.source.datasource import HeadraceSource
from headrace.spark.tasks.cut import Cut
from headrace.spark.tasks.progress import Progress
from headrace.spark.tasks.task_definition import Task, derivation
from headrace.testing.crash import Child, eventually
from tests.spark.bank import Bank
from tests.spark.crash.process_tree import is_gone

UserDefinedPythonDataSource = (
    "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
)
MOVEMENTS = "number long, account string, cents long"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[headrace.Workspace]:
    """A bank at a path that a URI would spell in another way."""
    with headrace.open(tmp_path / "my work%20") as opened:
        yield opened


@pytest.fixture
def bank(workspace: headrace.Workspace) -> Bank:
    workspace.collection("movements", MOVEMENTS, key="account", journals=2)
    return Bank(workspace)


def moving(bank: Bank, shards: int = 2) -> Task:
    @derivation(
        bank.workspace,
        sources=[bank.debits, bank.credits],
        to="movements",
        name="my/movements",
        shards=shards,
    )
    def movements(cut: Cut) -> DataFrame:
        return cut.debits.unionByName(cut.credits)

    return movements


def published(bank: Bank) -> list[tuple[int, int]]:
    table = bank.workspace.table("movements")
    return sorted(zip(*(table[name].to_pylist() for name in ("number", "cents")), strict=True))


def test_each_run_goes_on_where_the_last_one_ended(spark: SparkSession, bank: Bank) -> None:
    """This holds for another number of members, too. # proves G14"""
    for shards in (2, 1):
        bank.transfer(20)
        seen: list[Progress] = []
        moving(bank, shards=shards).run(spark, once=True, watch=seen.append)
        assert published(bank) == bank.movements()
        assert (seen[-1].rows, seen[-1].shards) == (40, shards)
        # From before the first micro-batch on it is known how much there is to do.
        assert seen[0].behind_bytes > 0
        assert (seen[-1].behind_bytes, seen[-1].ended) == (0, "done")
        assert 1 <= seen[-1].checkpoints <= seen[-1].checkpoint
    assert pc.sum(bank.workspace.table("movements")["cents"]).as_py() == 0


def with_source_in(spark: SparkSession, python: str) -> SparkSession:
    """Another session, whose `format("headrace")` runs in a Python of its own."""
    session = spark.newSession()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", python)
        function = _wrap_function(spark.sparkContext, HeadraceSource)
    source = getattr(spark._jvm, UserDefinedPythonDataSource)(function)
    manager: Any = session._jsparkSession.sessionState().dataSourceManager()
    manager.registerDataSource(HeadraceSource.name(), source)
    return session


def test_a_source_that_starts_too_late_for_spark_uses_up_no_restart(
    spark: SparkSession, bank: Bank, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This happens on a busy machine: Spark gives the process ten seconds to connect."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f"case $* in *source_runner*) mkdir {tmp_path}/tried 2>/dev/null && exit 0;; esac\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    session = with_source_in(spark, str(python))
    bank.transfer(20)
    seen: list[Progress] = []
    moving(bank).run(session, once=True, restarts=0, watch=seen.append)
    assert (tmp_path / "tried").exists()
    assert published(bank) == bank.movements()
    assert (seen[-1].rows, seen[-1].restarts) == (40, 0)
    [told] = [each.getMessage() for each in caplog.records if each.name == "headrace"]
    assert told.startswith("task my/movements: this machine is too busy: ")


def test_a_function_must_return_a_dataframe(spark: SparkSession, bank: Bank) -> None:
    bank.transfer(1)
    task = moving(bank)
    task.function = lambda cut: None  # type: ignore[assignment, return-value]
    with pytest.raises(
        UsageError, match=r"the function of task .* returned NoneType; return a DataFrame"
    ):
        task.run(spark, once=True)


def test_a_task_that_is_reset_reads_everything_again(spark: SparkSession, bank: Bank) -> None:
    """The output collection keeps what the first generation published."""
    bank.transfer(3)
    task = moving(bank, shards=1)
    task.run(spark, once=True)
    logs = bank.workspace.directory / "tasks" / "my%2Fmovements"  # type: ignore[operator]
    [first] = logs.iterdir()
    task.reset()
    task.run(spark, once=True)
    assert published(bank) == sorted(bank.movements() * 2)
    [second] = logs.iterdir()
    assert first != second


def test_a_task_without_sparks_logs_publishes_nothing_again(
    spark: SparkSession, bank: Bank
) -> None:
    """The sink knows what it holds. # proves G14"""
    bank.transfer(3)
    task = moving(bank, shards=1)
    task.run(spark, once=True)
    shutil.rmtree(bank.workspace.directory / "tasks")  # type: ignore[operator]
    bank.transfer(3)
    task.run(spark, once=True)
    assert published(bank) == bank.movements()


def test_a_task_that_is_stopped_before_it_runs_does_not_run(
    spark: SparkSession, bank: Bank
) -> None:
    """A program that stops several tasks may be faster than one of them starts."""
    task = moving(bank)
    task.stop()
    task.run(spark)
    bank.transfer(1)
    task.run(spark, once=True)
    assert published(bank) == bank.movements()


def test_a_task_goes_on_when_the_owner_of_the_journals_dies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The task does not take itself for replaced, and does not restart. # proves G14"""
    root = tmp_path / "owned"
    with Child("import headrace\nworkspace = headrace.open(root)", root=root) as owner:
        owner.run("None")
        with headrace.open(root) as workspace:
            workspace.collection("movements", MOVEMENTS, key="account", journals=2)
            bank = Bank(workspace)
            bank.transfer(5)
            task = moving(bank, shards=1)
            move = task.function

            def move_without_an_owner(cut: Cut) -> DataFrame:
                if owner.is_alive:
                    owner.kill()
                return move(cut)

            task.function = move_without_an_owner
            seen: list[Progress] = []
            task.run(spark, once=True, watch=seen.append)
            assert published(bank) == bank.movements()
            # A busy machine may make Spark fail, but not the death of the owner.
            failures = [each.failure for each in seen if each.failure]
            assert all(each.startswith("Spark: ") for each in failures), failures


def test_a_restart_names_the_member_that_was_killed(spark: SparkSession, bank: Bank) -> None:
    """Others may report sooner that the Session has ended; that is not the reason."""
    bank.transfer(5)
    task = moving(bank)
    move = task.function
    seen: list[Progress] = []

    def move_without_a_member(cut: Cut) -> DataFrame:
        if not any("was killed" in each.failure for each in seen):
            os.kill(seen[-1].processes[1], signal.SIGKILL)
            eventually(lambda: is_gone(seen[-1].processes[1]), 60, "the end of the member")
        return move(cut)

    task.function = move_without_a_member
    task.run(spark, once=True, watch=seen.append)
    killed = {each.processes[1] for each in seen if each.processes}
    failures = {each.failure for each in seen if each.failure}
    assert failures & {f"member 1 was killed or crashed (process {each})" for each in killed}
    # A busy machine may make Spark fail, too.
    assert all(each.startswith(("member 1 was killed", "Spark: ")) for each in failures), failures
    assert published(bank) == bank.movements()


def test_a_task_goes_on_under_the_schema_that_comes_while_it_runs(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    """Its Session cannot show a null where none was allowed; the next can. # proves G14"""
    workspace.collection("a", "n long, m long not null", key="n")
    workspace.collection("copies", "n long, m long", key="n")
    workspace.append("a", [{"n": 1, "m": 1}])
    seen: list[Progress] = []

    @derivation(workspace, sources=["a"], to="copies", shards=1)
    def copies(cut: Cut) -> DataFrame:
        return cut.a

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if workspace.table("copies").num_rows == 1 == workspace.table("a").num_rows:
            workspace.collection("a", "n long, m long", key="n")
            workspace.append("a", [{"n": 2, "m": None}])
        if workspace.table("copies").num_rows == 2:
            copies.stop()

    copies.run(spark, watch=watch)
    found = workspace.table("copies").sort_by("n")
    assert found.to_pylist() == [{"n": 1, "m": 1}, {"n": 2, "m": None}]
    assert seen[-1].restarts >= 1
    assert "was NOT NULL when the Session was opened" in max(each.failure for each in seen)


class Unfinished:
    """A sink after which Spark cannot write its commit log, so that every batch is run again."""

    is_exactly_once = False

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self.written = 0

    def open(self, *_: object) -> Unfinished:
        for commits in self._tasks.glob("*/*/commits"):
            commits.unlink()
            commits.with_name("aside").rename(commits)
        return self

    def last(self) -> None:
        """Return None: the sink does not know."""

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        self.written += 1
        if self.written > 3:
            raise UsageError("a replay counts as progress", do="let restarts end")
        for commits in self._tasks.glob("*/*/commits"):
            commits.rename(commits.with_name("aside"))
            commits.write_text("")

    def close(self) -> None:
        """Do nothing: nothing is open."""


def test_a_batch_that_is_run_again_and_again_uses_up_the_restarts(
    spark: SparkSession, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    """Each restart is reported, and sees the same checkpoint."""
    bank.transfer(1)
    sink = Unfinished(bank.workspace.directory / "tasks")  # type: ignore[operator]
    checkpoints: list[CheckpointId] = []

    @headrace.materialization(bank.workspace, sources=[bank.debits], sink=sink, name="t")
    def task(cut: Cut) -> DataFrame:
        checkpoints.append(cut.checkpoint)
        return cut.debits

    with pytest.raises(PeerLostError, match="Spark"):
        task.run(spark, once=True, restarts=2)
    assert sink.written == 3
    assert len(checkpoints) == 3
    assert len(set(checkpoints)) == 1
    told = [each.getMessage() for each in caplog.records if each.name == "headrace"]
    assert [line.rpartition(" s (")[2] for line in told] == ["1 of 2)", "2 of 2)"]
    assert all(line.startswith("task t: Spark: ") for line in told)


def test_a_task_reads_what_its_bindings_say_and_uses_it_as_often_as_it_likes(
    spark: SparkSession, bank: Bank, tmp_path: Path
) -> None:
    """The sinks are a writer of Spark and a function of the user."""
    bank.transfer(8)
    debits = headrace.Binding(collection="bank/debits", name="paid", key=("number",))
    counted: list[tuple[int, int, int]] = []

    def count(rows: DataFrame, checkpoint: CheckpointId) -> None:
        counted.append((checkpoint.number, rows.count(), rows.distinct().count()))

    def twice(cut: Cut) -> DataFrame:
        assert cut.paid.count() == cut.paid.distinct().count()
        return cut.paid.unionByName(cut.paid)

    sinks: dict[str, Sink] = {
        "counted": headrace.foreach_batch(count),
        "written": headrace.writer("parquet", str(tmp_path / "written")),
    }
    for name, sink in sinks.items():
        task = headrace.materialization(bank.workspace, sources=[debits], sink=sink, name=name)
        task(twice).run(spark, once=True)
    assert [each for each in counted if each[1]] == [(counted[-1][0], 16, 8)]
    written = spark.read.parquet(str(tmp_path / "written"))
    assert (written.count(), written.distinct().count()) == (16, 8)
