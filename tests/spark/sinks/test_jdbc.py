"""Rows by key in a table of Derby, exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.sql import SparkSession

import headrace
from headrace.errors import (
    FencedError,
    HeadraceError,
    NotFoundError,
    SchemaError,
    StorageError,
    UsageError,
)
from headrace.shuffle import History
from headrace.shuffle.checkpoints.checkpoint_history import reset_task
from headrace.spark.sinks.contract import CheckpointId, Sink
from headrace.spark.sinks.jdbc import JdbcTarget, StagedTable, jdbc
from headrace.spark.sinks.jdbc_connection import Connection
from headrace.spark.sinks.sink_generation import check_generation
from tests.spark.sinks.conftest import ORDERS, Numbers, checkpoint

FIRST = checkpoint(1)
STAGING = "SELECT tablename FROM sys.systables WHERE tablename LIKE 'HEADRACE!_%!_%' ESCAPE '!'"


class Database:
    """Embedded in Spark's JVM, on disk. The tables of a test are its own."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url
        self._spark = spark
        self.connection = Connection(spark, "the test", {"url": url, "dbtable": "none"})

    def do(self, sql: str) -> None:
        self.connection.update(sql)

    def rows(self, sql: str = "SELECT id, name FROM totals ORDER BY id") -> list[tuple[Any, ...]]:
        return self.connection.query(sql)

    def open(
        self, workspace: headrace.Workspace, opened: CheckpointId = FIRST, **given: Any
    ) -> JdbcTarget:
        sink = jdbc(self.url, **{"table": "totals", "key": ["id"], **given})
        return sink.open(self._spark, workspace, opened)

    def staging(self) -> list[tuple[Any, ...]]:
        return [each for each in self.rows(STAGING) if each != ("HEADRACE_CHECKPOINTS",)]

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="module")
def derby(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    jvm: Any = spark._jvm
    directory = tmp_path_factory.mktemp("derby")
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(directory / "derby.log"))
    database = Database(spark, f"jdbc:derby:{directory}/bank;create=true")
    yield database
    database.close()
    with pytest.raises(Py4JJavaError, match="shutdown"):
        jvm.java.sql.DriverManager.getConnection(f"jdbc:derby:{directory}/bank;shutdown=true")


@pytest.fixture
def database(derby: Database) -> Iterator[Database]:
    derby.do("CREATE TABLE totals (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(20))")
    yield derby
    staging = [table for (table,) in derby.staging()]
    for table in ("totals", "headrace_checkpoints", *staging):
        with suppress(HeadraceError):
            derby.do(f"DROP TABLE {table}")


def begun(workspace: headrace.Workspace) -> CheckpointId:
    """The first checkpoint of the generation that is current."""
    return checkpoint(1, History(workspace.objects, FIRST.task).generation)


def begun_anew(workspace: headrace.Workspace) -> CheckpointId:
    reset_task(workspace.objects, FIRST.task)
    return begun(workspace)


def test_a_row_replaces_the_one_with_its_key(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """Also an empty batch. # proves G14"""
    target = database.open(workspace)
    assert target.last() == 0
    target.write(numbers(0, 3), checkpoint(1))
    target.write(numbers(2, 5, "new"), checkpoint(2))
    target.write(numbers(0, 0), checkpoint(3))
    assert target.last() == 3
    target.close()
    assert database.rows() == [
        *((0, "name 0"), (1, "name 1")),
        *((2, "new 2"), (3, "new 3"), (4, "new 4")),
    ]
    assert database.staging() == []
    assert database.rows("SELECT * FROM headrace_checkpoints") == [
        (workspace.reach().identity, "bank/totals", "totals", "g1", 3)
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jdbc:mysql://ann:pw@host/bank?password=pw", "jdbc:mysql://host/bank"),
        ("jdbc:oracle:thin:ann/pw@//host:1521/bank", "jdbc:oracle:thin://host:1521/bank"),
        ("jdbc:sqlserver://host:1433;password=pw", "jdbc:sqlserver://host:1433"),
        ("jdbc:postgresql://host/bank", "jdbc:postgresql://host/bank"),
    ],
)
def test_it_says_what_it_is_without_what_is_secret(url: str, shown: str) -> None:
    sink: Sink = jdbc(url, "totals", key=["id"])
    assert sink.is_exactly_once
    assert str(sink) == f"table totals in {shown}"


def test_a_checkpoint_that_is_held_is_not_written_again(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """By the same run or by another; nor is one written out of order. # proves G14"""
    first, second = database.open(workspace), database.open(workspace)
    first.write(numbers(0, 1), checkpoint(1))
    first.write(numbers(0, 1, "again"), checkpoint(1))
    second.write(numbers(0, 1, "again"), checkpoint(1))
    second.write(numbers(1, 2), checkpoint(2))
    first.write(numbers(0, 1, "late"), checkpoint(1))
    for number in (0, 4):
        with pytest.raises(UsageError, match=rf"checkpoint {number} of .* does not follow 2, the"):
            first.write(numbers(0, 2), checkpoint(number))
    assert database.rows() == [(0, "name 0"), (1, "name 1")]
    first.close()
    second.close()


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_a_run_that_was_given_up_and_its_successor(
    database: Database, workspace: headrace.Workspace, numbers: Numbers, order: tuple[str, ...]
) -> None:
    """One of them counts, whatever the order of their steps. # proves G14"""
    targets = {"old": database.open(workspace)}
    staged: dict[str, StagedTable] = {}
    applied = []
    for run, step in (each.split() for each in order):
        if step == "open":
            targets[run] = database.open(workspace)
        elif step == "stage":
            staged[run] = targets[run].stage(numbers(0, 1, run), checkpoint(1))
        else:
            # What the old one has staged goes when the new one opens.
            with suppress(UsageError) if run == "old" else nullcontext():
                targets[run].commit(staged[run])
                applied.append(run)
    assert database.rows() == [(0, f"{applied[0]} 0")]
    assert "new" in applied
    assert [each.last() for each in targets.values()] == [1, 1]
    assert database.staging() == []
    for each in targets.values():
        each.close()


def test_two_at_once_wait_for_each_other(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """The second begins when the first has moved the checkpoint and not committed. # proves G14"""
    first, second = database.open(workspace), database.open(workspace)
    staged = [
        each.stage(numbers(0, 1, name), checkpoint(1))
        for each, name in ((first, "first"), (second, "second"))
    ]
    waiting = threading.Thread(target=second.commit, args=(staged[1],))
    with first._connection.transaction():
        assert first._move(checkpoint(1))
        waiting.start()
        deadline = time.monotonic() + 30
        while not database.rows("SELECT xid FROM syscs_diag.lock_table WHERE state = 'WAIT'"):
            assert waiting.is_alive()
            assert time.monotonic() < deadline
        first._apply(staged[0])
    waiting.join(60)
    assert not waiting.is_alive()
    assert database.rows() == [(0, "first 0")]
    assert second.last() == 1
    first.close()
    second.close()


def test_what_a_crash_left_is_dropped(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    killed = database.open(workspace)
    killed.stage(numbers(0, 2), checkpoint(1))
    killed.close()
    database.open(workspace, checkpoint(1, task="other")).close()
    assert len(database.staging()) == 1
    database.open(workspace).close()
    assert database.staging() == []
    assert database.rows() == []


def test_after_a_reset_an_older_generation_is_refused(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """Whatever it had staged. # proves G14"""
    of_old = begun(workspace)
    old = database.open(workspace, of_old)
    old.write(numbers(0, 2), of_old)
    of_new = begun_anew(workspace)
    new = database.open(workspace, of_new)
    assert new.last() == 0
    staged = old.stage(numbers(0, 2, "old"), of_old._replace(number=2))
    says = f"generation {of_new.generation} of .* totals .* of generation {of_old.generation}"
    with pytest.raises(FencedError, match=says):
        old.commit(staged)
    with pytest.raises(FencedError, match="end this run: another one has replaced it"):
        old.write(numbers(0, 2, "old"), of_old._replace(number=2))
    new.write(numbers(1, 2, "new"), of_new)
    assert database.rows() == [(0, "name 0"), (1, "new 1")]
    old.close()
    new.close()


def test_an_older_generation_that_opens_late_takes_nothing_back(
    database: Database,
    workspace: headrace.Workspace,
    numbers: Numbers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither after the newer one, nor if that opens in the midst of it. # proves G14"""
    database.open(workspace, begun(workspace)).close()
    of_late = begun_anew(workspace)
    opened: list[JdbcTarget] = []

    def check_and_be_replaced(*of: Any) -> None:
        check_generation(*of)
        monkeypatch.undo()
        of_new = begun_anew(workspace)
        opened.append(database.open(workspace, of_new))
        opened[0].write(numbers(0, 1), of_new)

    monkeypatch.setattr("headrace.spark.sinks.jdbc.check_generation", check_and_be_replaced)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"has no generation {of_late.generation}: it was res"):
            database.open(workspace, of_late)
    [new] = opened
    assert new.last() == 1
    new.close()


def test_tasks_of_other_workspaces_are_others(
    database: Database, workspace: headrace.Workspace, numbers: Numbers, tmp_path: Path
) -> None:
    """Whatever their names."""
    mine = database.open(workspace)
    staged = mine.stage(numbers(0, 1), checkpoint(1))
    with headrace.open(tmp_path / "other") as elsewhere:
        theirs = database.open(elsewhere)
        theirs.write(numbers(1, 2), checkpoint(1))
        mine.commit(staged)
        assert (mine.last(), theirs.last()) == (1, 1)
        theirs.close()
    mine.close()
    assert database.rows() == [(0, "name 0"), (1, "name 1")]


def test_a_task_that_is_tried_again_writes_once(
    database: Database, workspace: headrace.Workspace, spark: SparkSession
) -> None:
    """# proves G14"""

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context
        if context.attemptNumber() == 0:
            raise ValueError("the first attempt")

    target = database.open(workspace)
    rows = spark.range(0, 5_000, 1, 1).mapInArrow(fail_first, "id long")
    target.write(rows, checkpoint(1))
    assert database.rows("SELECT COUNT(*), SUM(id) FROM totals") == [(5_000, 12_497_500)]
    target.close()


def test_a_second_attempt_at_a_task_cannot_add_to_what_the_first_wrote(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """As one that runs at the same time does, or whose answer was lost. # proves G14"""
    target = database.open(workspace)
    staged = target.stage(numbers(0, 4), checkpoint(1))
    columns = '("headrace_0", "headrace_1", "headrace_row")'
    with pytest.raises(StorageError, match="duplicate key"):
        database.do(
            f"INSERT INTO {staged.table} {columns}"
            f' SELECT "headrace_0" + 10, "headrace_1", "headrace_row" FROM {staged.table}'
        )
    target.commit(staged)
    assert [each for each, _ in database.rows()] == [0, 1, 2, 3]
    target.close()


def test_keys_of_several_columns_in_any_spelling_and_schema(
    database: Database, workspace: headrace.Workspace, spark: SparkSession
) -> None:
    database.do('CREATE TABLE bank.totals ("in" VARCHAR(9), id INT, cents BIGINT DEFAULT 7)')
    target = database.open(workspace, table="bank.totals", key=["ID", "in"])
    rows = spark.range(2).selectExpr("CAST(id AS INT) AS Id", "'ann' AS `in`", "id AS Cents")
    target.write(rows, checkpoint(1))
    target.write(rows.where("id = 1").drop("cents"), checkpoint(2))
    target.stage(rows, checkpoint(3))
    target.close()
    found = database.rows('SELECT id, "in", cents FROM bank.totals ORDER BY id')
    assert found == [(0, "ann", 0), (1, "ann", 7)]
    database.open(workspace, table="bank.totals", key=["id"]).close()
    assert database.staging() == []
    for table in ("bank.totals", "bank.headrace_checkpoints"):
        database.do(f"DROP TABLE {table}")


def test_a_lost_connection_is_made_again(
    database: Database, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    target = database.open(workspace)
    target.close()
    target.write(numbers(0, 1), checkpoint(1))
    assert database.rows() == [(0, "name 0")]
    target.close()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            ["id % 2 AS id"],
            "more than one row with key 0 for table totals, whose key is id; ret",
        ),
        (["nullif(id, 1) AS id"], "1 rows without a key for table totals, whose key is id; ret"),
        (["'x' AS name"], "the rows for table totals lack column 'ID', which is in its key"),
        (["id", "id AS cents"], r"totals in jdbc:derby:.*/bank has no column 'cents'; use one"),
        (["id", "id AS ID"], "two columns of one name; rename one"),
        (["id", "array(id) AS name"], "cannot be made in jdbc:derby:.*array<bigint>.*let the user"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    database: Database,
    workspace: headrace.Workspace,
    spark: SparkSession,
    columns: list[str],
    says: str,
) -> None:
    target = database.open(workspace)
    with pytest.raises(HeadraceError, match=says) as raised:
        target.write(spark.range(0, 3, 1, 1).selectExpr(*columns), checkpoint(1))
    assert "\n" not in str(raised.value)
    assert target.last() == 0
    target.close()
    assert database.rows() == []
    assert database.staging() == []


def test_a_table_that_cannot_be_used_is_named(
    database: Database, workspace: headrace.Workspace, spark: SparkSession
) -> None:
    with pytest.raises(NotFoundError, match=r"table nope cannot be read: .*'NOPE' does not exist"):
        database.open(workspace, table="nope")
    with pytest.raises(
        SchemaError, match=r"has no column 'nope'; use one of its columns: ID, NAME"
    ):
        database.open(workspace, key=["nope"])
    with pytest.raises(
        UsageError, match=r"Spark has no class no.such.Driver; name the driver's class"
    ):
        database.open(workspace, driver="no.such.Driver")
    with pytest.raises(UsageError, match=r"Spark has no driver for jdbc:nope://host; correct"):
        jdbc("jdbc:nope://host", "t", key=["id"]).open(spark, workspace, checkpoint(1))
    with pytest.raises(UsageError, match=r"refused to connect: .*batchsize"):
        database.open(workspace, properties={"batchsize": "-1"})
    with pytest.raises(StorageError, match=r"refused to connect: Database '.*gone' not found"):
        jdbc("jdbc:derby:gone", "t", key=["id"]).open(spark, workspace, checkpoint(1))


@pytest.mark.parametrize(
    ("url", "table", "key", "says"),
    [
        ("postgresql://host", "t", ["id"], "is no URL for JDBC; write it like jdbc:"),
        ("jdbc:derby:x", "t", "id", "'id' is no key of table t; give a list of column names"),
        ("jdbc:derby:x", "t", [], "no key of table t"),
        ("jdbc:derby:x", "", ["id"], "'' cannot name a table"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    url: str, table: str, key: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        jdbc(url, table, key=key)
