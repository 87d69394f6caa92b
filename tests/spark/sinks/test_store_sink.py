"""Stores as sinks: a checkpoint is applied once, with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.errors import FencedError, NotFoundError, SchemaError, UsageError
from headrace.spark.sinks.contract import CheckpointId, ReopenableTarget
from headrace.spark.sinks.store_sink import StoreTarget, timeseries, vectors
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service.store_access import create_store, open_store
from headrace.testing.crash import Child
from tests.spark.sinks.conftest import checkpoint

OWNER = """
from headrace.stores.service.store_access import open_store
store = open_store(path)
"""


class StoreLocation:
    def __init__(self, kind: str, path: Path, spark: SparkSession) -> None:
        if kind == "vectors":
            create_store(path, kind, dimension=2, metadata={"n": "long"})
        else:
            create_store(path, kind)
        self.kind = kind
        self.path = path
        self.spark = spark
        self.workspace = headrace.open(path.parent / "workspace")

    def open(
        self,
        generation: str = "g1",
        task: str = "bank/totals",
        workspace: headrace.Workspace | None = None,
    ) -> StoreTarget:
        sink = {"timeseries": timeseries, "vectors": vectors}[self.kind](self.path)
        opened = checkpoint(1, generation, task)
        return sink.open(self.spark, workspace or self.workspace, opened)

    def rows(self, start: int, end: int) -> DataFrame:
        given = self.spark.range(start, end, 1, min(2, end - start) or 1)
        if self.kind == "timeseries":
            return given.selectExpr(
                "timestamp_micros(id * 1000000 + 999) AS timestamp",
                "double(id) AS value",
                "map('__name__', 'n', 'odd', string(id % 2)) AS labels",
            )
        return given.selectExpr(
            "string(id) AS id", "array(float(id), float(1)) AS vector", "id AS n"
        )

    def numbers(self) -> list[int]:
        with open_store(self.path) as store:
            table = pa.Table.from_batches(store.scan(), store.schema)
        name = {"timeseries": "value", "vectors": "n"}[self.kind]
        return sorted(map(int, table[name].to_pylist()))


@pytest.fixture(params=["timeseries", "vectors"])
def location(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[StoreLocation]:
    monkeypatch.setattr(
        "headrace.spark.sinks.store_sink.check_generation", lambda objects, opened: None
    )
    made = StoreLocation(request.param, tmp_path / "store", spark)
    yield made
    made.workspace.close()


# proves G14
def test_a_checkpoint_is_applied_once_whoever_has_the_sink_open(location: StoreLocation) -> None:
    """What is held is skipped, what leaves a gap is refused, who was replaced is."""
    old = location.open()
    assert old.last() == 0
    old.write(location.rows(0, 3), checkpoint(1))
    assert old.last() == 1
    old.write(location.rows(5, 9), checkpoint(1))
    assert location.numbers() == [0, 1, 2]
    new = location.open()
    assert new.last() == 1
    new.write(location.rows(5, 9), checkpoint(1))
    with pytest.raises(UsageError, match=r"checkpoint 3 of task .* does not follow 1, the last"):
        new.write(location.rows(3, 4), checkpoint(3))
    with pytest.raises(UsageError, match="which was opened for generation g1 of task"):
        new.write(location.rows(3, 4), checkpoint(2, "g2"))
    new.write(location.rows(3, 6), checkpoint(2))
    new.commit([], checkpoint(1))
    assert new.last() == 2
    old.write(location.rows(7, 9), checkpoint(2))
    assert location.numbers() == [0, 1, 2, 3, 4, 5], "the first one of a generation counts"
    new.write(location.rows(3, 5).where("rand(1) > 2"), checkpoint(3))  # Tasks without rows.
    old.write(location.rows(6, 7), checkpoint(4))
    assert location.numbers() == [0, 1, 2, 3, 4, 5, 6]
    replacing = location.open("g2")
    assert replacing.last() == 0
    with pytest.raises(FencedError, match=r"generation g1 of task .* was replaced by g2"):
        old.write(location.rows(7, 8), checkpoint(5))
    with pytest.raises(FencedError):
        location.open("g1")
    assert location.open(task="another").last() == 0
    assert location.numbers() == [0, 1, 2, 3, 4, 5, 6]


def test_tasks_of_one_name_in_two_workspaces_share_a_store_and_nothing_else(
    location: StoreLocation,
) -> None:
    target = location.open()
    target.write(location.rows(0, 2), checkpoint(1))
    with headrace.open(location.path.parent / "another") as workspace:
        another = location.open(workspace=workspace)
        assert another.last() == 0
        another.write(location.rows(2, 4), checkpoint(1))
    target.write(location.rows(4, 6), checkpoint(2))
    assert location.numbers() == [0, 1, 2, 3, 4, 5]


def test_a_write_that_fails_leaves_nothing(location: StoreLocation) -> None:
    target = location.open()
    column = {"timeseries": "value", "vectors": "n"}[location.kind]
    good = location.rows(0, 4)
    failing = good.selectExpr(
        *(each for each in good.columns if each != column),
        f"IF({column} = 3, raise_error('no'), {column}) AS {column}",
    )
    with pytest.raises(Exception, match="no"):
        target.write(failing, checkpoint(1))
    assert location.numbers() == []
    target.write(good, checkpoint(1))
    assert location.numbers() == [0, 1, 2, 3]


def test_a_batch_goes_on_with_the_next_owner_of_the_store(location: StoreLocation) -> None:
    with Child(OWNER, path=location.path) as owner:
        owner.run("None")
        target = location.open()
        assert isinstance(target, ReopenableTarget)
        target.write(location.rows(0, 3), checkpoint(1))
        assert not target.is_lost()
        parts = target.stage(location.rows(3, 5), checkpoint(2))
        owner.kill()
    assert target.is_lost()
    target.reopen()
    assert not target.is_lost()
    assert target.last() == 1
    target.write(location.rows(3, 5), checkpoint(2))
    with pytest.raises(Exception, match="part"):
        target.commit(parts, checkpoint(3))
    assert location.numbers() == [0, 1, 2, 3, 4]


def test_a_store_that_nobody_serves_any_more_is_lost(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.spark.sinks.store_sink.check_generation", lambda objects, opened: None
    )
    location = StoreLocation("timeseries", tmp_path / "store", spark)
    with Child(OWNER, path=location.path) as owner:
        address, token = owner.run("(store.reach().address, store.reach().token)")
        sink = timeseries(address, token=token)
        target = sink.open(spark, location.workspace, checkpoint(1))
        assert not target.is_lost()
        owner.kill()
    assert target.is_lost()
    target.close()
    location.workspace.close()


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        ("timeseries", ["timestamp(id) AS time", "1d AS value"], "0 columns 'timestamp'"),
        ("timeseries", ["timestamp(id) AS timestamp"], "0 columns 'value'"),
        ("timeseries", ["id AS timestamp", "'x' AS value"], "column 'value' has the type string"),
        ("timeseries", ["'x' AS timestamp", "1d AS value"], "column 'timestamp' has the type"),
        ("timeseries", ["id AS timestamp", "1d AS value", "id AS job"], "column 'job' has the"),
        ("timeseries", ["id AS timestamp", "1d AS value", "array(1) AS labels"], "'labels' has"),
        ("vectors", ["array(1f, 2f) AS vector"], "no column 'id'"),
        ("vectors", ["string(id) AS id"], "no column 'vector'"),
        ("vectors", ["string(id) AS id", "1f AS vector"], "column 'vector' has the type"),
        ("vectors", ["string(id) AS id", "array(1f, 2f) AS vector", "1 AS c"], "no column 'c'"),
        ("vectors", ["string(id) AS id", "array(1f, 2f) AS vector", "'x' AS n"], "'n'"),
    ],
)
def test_wrong_columns_are_named_before_spark_begins(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    columns: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(
        "headrace.spark.sinks.store_sink.check_generation", lambda objects, opened: None
    )
    location = StoreLocation(kind, tmp_path / "store", spark)
    target = location.open()
    with pytest.raises(SchemaError, match=message) as raised:
        target.write(spark.range(1).selectExpr(*columns), checkpoint(1))
    assert str(location.path) in str(raised.value)
    assert raised.value.do
    target.close()
    location.workspace.close()


def test_samples_keep_whole_milliseconds(tmp_path: Path, location: StoreLocation) -> None:
    if location.kind != "timeseries":
        return
    location.open().write(location.rows(1, 2), checkpoint(1))
    with open_store(location.path) as store:
        (batch,) = store.scan()
    assert batch["timestamp"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]


def test_a_task_that_is_not_the_workspaces_takes_no_store(
    tmp_path: Path, spark: SparkSession
) -> None:
    """If it was reset before it opened the sink, the store cannot know that it was replaced."""
    create_store(tmp_path / "store", "timeseries")
    with headrace.open(tmp_path / "workspace") as workspace:
        with pytest.raises(NotFoundError, match="there is no task 'bank/totals'"):
            timeseries(tmp_path / "store").open(spark, workspace, checkpoint(1))
        with open_store(tmp_path / "store") as store:
            assert store.owner, "the sink that was not opened let go of the store"
            task = f"{workspace.reach().identity}/bank/totals"
            assert store.take(task, "g2") == 0
            store.apply(
                pa.RecordBatch.from_pylist([], schema=store.schema), StoreCheckpoint(task, "g2", 1)
            )


# proves G14
def test_a_run_that_is_replaced_while_it_opens_the_sink_leaves_the_store_to_the_next(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped between its look at the workspace and its call of the store."""
    location.open("g1").close()
    found: list[StoreTarget] = []

    def is_current_until_now(objects: object, opened: CheckpointId) -> None:
        if opened.generation == "g3":
            return
        if found:
            raise UsageError("task 'bank/totals' was reset", do="run it again")
        found.append(location.open("g3"))

    monkeypatch.setattr("headrace.spark.sinks.store_sink.check_generation", is_current_until_now)
    with pytest.raises(UsageError, match="was reset"):
        location.open("g2")
    [successor] = found
    successor.write(location.rows(0, 3), checkpoint(1, "g3"))
    successor.close()
    assert location.numbers() == [0, 1, 2]


@pytest.mark.parametrize("store", ["", 7, None])
def test_a_wrong_location_is_refused(store: object) -> None:
    for sink in (timeseries, vectors):
        with pytest.raises(UsageError, match="is no location of a store"):
            sink(store)  # type: ignore[arg-type]


def test_a_store_of_the_other_kind_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    create_store(tmp_path / "store", "timeseries")
    with (
        headrace.open(tmp_path / "workspace") as workspace,
        pytest.raises(UsageError, match="is a store of timeseries, not of vectors"),
    ):
        vectors(tmp_path / "store").open(spark, workspace, checkpoint(1))
