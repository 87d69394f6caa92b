"""What a query is refused, and that it is told in one line what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.errors import HeadraceError, SchemaError, UsageError
from headrace.files import identify_directory
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.shuffle import reset_task
from headrace.spark.query_failure import explain
from headrace.spark.spark_members import SparkMembers
from headrace.spark.write.dataframe_transaction import publish
from tests.spark.bank import Bank


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Expect that a part of the query fails, and that an error of Headrace is the cause."""
    with pytest.raises(PySparkException) as caught:
        yield
    cause = explain(caught.value)
    assert isinstance(cause, HeadraceError), cause
    assert re.search(what, str(cause)), cause
    assert "\n" not in str(cause)


def run_once(rows: DataFrame, location: Path, seen: list[int] | None = None) -> None:
    def look(batch: DataFrame, number: int) -> None:
        (seen if seen is not None else []).append(batch.count())

    writer = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(location))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_checkpoint_directory_of_another_task_or_generation_is_refused(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    bank = Bank(workspace)
    bank.transfer(1)
    run_once(bank.stream(spark, "one"), tmp_path / "spark")
    bank.transfer(1)
    with refused(
        "belongs to task 'one', generation .*, and this is task 'two', generation .*; give"
    ):
        run_once(bank.stream(spark, "two"), tmp_path / "spark")
    reset_task(workspace.objects, "one")
    with refused(
        "belongs to task 'one', generation .*, and this is task 'one', generation .*; give"
    ):
        run_once(bank.stream(spark, "one"), tmp_path / "spark")


def test_a_collection_that_vanishes_is_named(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    bank = Bank(workspace)
    with refused("there is no collection 'bank/debts'; create it, or correct the name"):
        bank.stream(spark, collections="bank/debts")
    bank.transfer(1)
    rows = bank.stream(spark)
    run_once(rows, tmp_path / "spark")
    workspace.delete_collection("bank/debits")
    with refused("there is no collection 'bank/debits'"):
        run_once(rows, tmp_path / "spark")


def test_a_column_may_be_added_and_a_type_may_not_change(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    workspace.collection("a", "n long")
    options = {"workspace": str(workspace.directory), "collections": "a", "task": "t"}

    def rows() -> DataFrame:
        return spark.readStream.format("headrace").options(**options).load()

    workspace.append("a", [{"n": 1}])
    before = rows()
    seen: list[int] = []
    run_once(before, tmp_path / "spark", seen)
    workspace.collection("a", "n long, label string")
    workspace.append("a", [{"n": 2, "label": "two"}])
    run_once(before, tmp_path / "spark", seen)
    assert rows().columns == ["n", "label"]
    workspace.append("a", [{"n": 3, "label": "three"}])
    run_once(rows(), tmp_path / "spark", seen)
    assert [count for count in seen if count] == [1, 1, 1]

    old = rows()
    workspace.delete_collection("a")
    workspace.collection("a", "n string")
    workspace.append("a", [{"n": "four"}])
    with refused("column 'n' of collection 'a' is string, and the query was made when it was big"):
        run_once(old, tmp_path / "spark", seen)


def test_progress_that_is_kept_asynchronously_is_refused(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    bank = Bank(workspace)
    query = (
        bank.stream(spark)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "spark"))
        .option("asyncProgressTrackingEnabled", "true")
        .option("asyncProgressTrackingCheckpointIntervalMs", "60000")
        .start()
    )
    try:
        with refused("leave out the option asyncProgressTrackingEnabled"):
            for _ in range(10):
                bank.transfer(1)
                query.processAllAvailable()
    finally:
        query.stop()


def test_a_shortage_of_slots_is_told_before_anything_waits_for_them(spark: SparkSession) -> None:
    slots = spark.sparkContext.defaultParallelism
    with pytest.raises(
        UsageError, match=r"members .* slots, and local.* has \d+; give Spark 1 mor"
    ):
        SparkMembers(spark, slots)
    with (
        SparkMembers(spark, 1),
        pytest.raises(UsageError, match=r"has \d+, of which others hold 1; give Spark 1 "),
    ):
        SparkMembers(spark, slots - 1)


def test_a_workspace_that_executors_cannot_reach_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    with headrace.open(tmp_path / "workspace", token="a-token-of-the-test") as owner:
        owner.collection("a", "n long")
        owner.append("a", [{"n": 1}])
        options = {"token": "a-token-of-the-test", "collections": "a"}
        rows = spark.read.format("headrace").options(**options).load(str(owner.address))
        assert rows.count() == 1
        other = spark.read.format("headrace").options(**options).load(str(owner.address))
    with refused("cannot be reached"):
        other.count()


def test_executors_of_another_machine_than_the_workspace_say_how_to_reach_it(
    spark: SparkSession, workspace: headrace.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They call the owner, which listens where no other machine can call."""
    workspace.collection("numbers", "number long")
    there = identify_directory(Path(workspace.location))._replace(kernel="of another machine")
    reach = WorkspaceRef(there, "grpc://127.0.0.1:1", "")
    monkeypatch.setattr(workspace, "reach", lambda: reach)
    told = "not open to this process, .* reached: .*; serve it with `headrace serve --host`"
    transaction = workspace.publisher().begin()
    with refused(told):
        publish(spark.range(1).toDF("number"), workspace, "numbers", transaction)


def test_a_stream_under_the_name_of_a_task_is_refused(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    bank = Bank(workspace)
    sink = headrace.foreach_batch(lambda rows, checkpoint: None)
    task = headrace.materialization(workspace, sources=[bank.debits], sink=sink, name="bank")
    task(lambda cut: cut.debits).run(spark, once=True)
    with refused("'bank' is the name of a task, which has checkpoints of its own; give the stream"):
        run_once(bank.stream(spark, "bank"), tmp_path / "spark")
    bank.transfer(1)
    run_once(bank.stream(spark, "other"), tmp_path / "other")
    task = headrace.materialization(workspace, sources=[bank.debits], sink=sink, name="other")
    with pytest.raises(UsageError, match="'other' is the name of a stream, which has checkpoints"):
        task(lambda cut: cut.debits).run(spark, once=True)


def wrong_tasks(workspace: headrace.Workspace) -> list[tuple[Callable[[], object], str]]:
    def made(**options: Any) -> Callable[[], object]:
        given = {"workspace": workspace, "sources": ["a"], "sink": headrace.parquet("x")}
        return lambda: headrace.materialization(**{**given, **options})(lambda cut: cut.a)

    return [
        (made(sources="a"), "sources must be a list; write"),
        (made(sources=[3]), "a source cannot have the type int; give a Collection"),
        (made(sink="movements"), r"a sink of type str; use hr\.parquet"),
        (made(shards="2"), "shards of task .* must be at least 1, got '2'; use a whole"),
        (made(documents_max=0), "documents_max of task .* must be at least 1, got 0; use"),
        (made(workspace="./bank"), r"'./bank' instead of a workspace; give it what hr\.open"),
        (made(name="a b"), "cannot name a task; use"),
        (lambda: headrace.derivation(workspace, sources=["a"], to=3), "to 3; name a collection"),  # type: ignore[arg-type]
        (lambda: headrace.foreach_batch("x"), "'x' is no function; give"),  # type: ignore[arg-type]
        (lambda: headrace.writer(""), "'' is no format; name a format"),
        (lambda: headrace.parquet(None), "None is no location for Parquet files; use"),  # type: ignore[arg-type]
        (
            lambda: headrace.parquet("x", file_bytes=0),
            "file_bytes must be at least 1, got 0; use a whole",
        ),
        (
            lambda: headrace.jdbc("jdbc:x:y", "t", key=[1]),  # type: ignore[list-item]
            r"\[1\] is no key of table t; give a list",
        ),
    ]


def test_a_task_that_cannot_be_run_is_refused_when_it_is_made(
    workspace: headrace.Workspace,
) -> None:
    workspace.collection("a", "n long")
    for make, expected in wrong_tasks(workspace):
        with pytest.raises(UsageError, match=expected):
            make()


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([], "the task has no bindings; name at least one collection"),
        (["a", "a"], "two bindings are named 'a'; give each its own name"),
        (["b"], "there is no collection 'b'; create it"),
    ],
)
def test_sources_that_cannot_be_read_are_refused_before_members_start(
    spark: SparkSession, workspace: headrace.Workspace, sources: list[str], expected: str
) -> None:
    workspace.collection("a", "n long")
    sink = headrace.parquet("x")
    task = headrace.materialization(workspace, sources=sources, sink=sink, name="t")
    with pytest.raises(UsageError, match=expected):
        task(lambda cut: cut.a).run(spark)


def test_rows_that_do_not_fit_the_collection_are_refused_before_any_work(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    workspace.collection("a", "n long")
    workspace.collection("keyed", "k string, n long", key="k")
    workspace.append("a", [{"n": 1}])
    task = headrace.derivation(workspace, sources=["a"], to="keyed", name="t", shards=1)(
        lambda cut: cut.a
    )
    with pytest.raises(SchemaError, match="collection 'keyed' needs column 'k', which the rows do"):
        task.run(spark, once=True)
