"""Parquet files, appended exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import headrace
from headrace.errors import ExistsError, NotFoundError, SchemaError, StorageError, UsageError
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.parquet import ParquetFiles, ParquetTarget, StagedFiles, parquet
from headrace.storage import S3Options
from tests.s3 import BUCKET
from tests.spark.sinks.conftest import ORDERS, Numbers, checkpoint


class SinkLocation:
    """A sink that is opened for one task."""

    def __init__(self, sink: ParquetFiles, spark: SparkSession, ws: headrace.Workspace) -> None:
        self.sink = sink
        self._spark = spark
        self._workspace = ws

    def open(self, generation: str = "g1", task: str = "bank/totals") -> ParquetTarget:
        return self.sink.open(self._spark, self._workspace, checkpoint(1, generation, task))

    def ids(self) -> list[int]:
        return sorted(self.sink.table()["id"].to_pylist())


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, workspace: headrace.Workspace) -> SinkLocation:
    return SinkLocation(parquet(tmp_path / "movements"), spark, workspace)


def data_files(directory: Path) -> set[str]:
    """Those that are staged, too."""
    return {str(each) for each in directory.rglob("*.parquet*")}


def test_rows_are_appended_checkpoint_by_checkpoint(
    location: SinkLocation, numbers: Numbers, spark: SparkSession, tmp_path: Path
) -> None:
    """Also an empty one, and one with another column. # proves G14"""
    sink: Sink = location.sink
    assert sink.is_exactly_once
    assert str(sink) == f"Parquet files in {tmp_path / 'movements'}"
    target = location.open()
    assert target.last() == 0
    with pytest.raises(NotFoundError, match=r"nothing is committed in .*movements"):
        location.sink.files()
    target.write(numbers(0, 0), checkpoint(1))
    assert location.sink.read(spark).collect() == []
    assert location.sink.table().schema.names == ["id", "name"]
    target.write(numbers(0, 4), checkpoint(2))
    target.write(numbers(4, 6).selectExpr("id", "id > 4 AS late"), checkpoint(3))
    assert target.last() == location.open().last() == 3
    assert set(location.sink.files()) == data_files(tmp_path)
    expected = [(n, f"name {n}", None) for n in range(4)] + [(4, None, False), (5, None, True)]
    assert sorted(map(tuple, location.sink.read(spark).collect())) == expected
    assert sorted(tuple(row.values()) for row in location.sink.table().to_pylist()) == expected


def plainly_read(spark: SparkSession, directory: Path) -> list[list[int]]:
    """What those see who do not know Headrace."""
    return [
        sorted(pd.read_parquet(directory)["id"]),
        sorted(ds.dataset(directory, format="parquet").to_table()["id"].to_pylist()),
        sorted(row["id"] for row in spark.read.parquet(str(directory)).collect()),
    ]


def test_readers_without_headrace_see_what_is_committed_once(
    location: SinkLocation, numbers: Numbers, spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever attempts left, and wherever they were interrupted."""
    directory = tmp_path / "movements"
    first = location.open()
    first.write(numbers(0, 2), checkpoint(1))
    assert plainly_read(spark, directory) == [[0, 1]] * 3
    left = first.stage(numbers(2, 4), checkpoint(2))
    second = location.open()
    again = second.stage(numbers(2, 4), checkpoint(2))
    assert plainly_read(spark, directory) == [[0, 1]] * 3
    second._manifests.commit(*again)  # and the process is killed
    assert plainly_read(spark, directory) == [[0, 1]] * 3
    assert location.ids() == [0, 1]
    third = location.open()
    assert third.last() == 2
    assert plainly_read(spark, directory) == [[0, 1, 2, 3]] * 3
    first.commit(left)
    third.write(numbers(4, 6), checkpoint(3))
    assert plainly_read(spark, directory) == [[0, 1, 2, 3, 4, 5]] * 3
    assert location.ids() == [0, 1, 2, 3, 4, 5]


def test_what_another_process_committed_and_did_not_show_is_shown(
    location: SinkLocation, numbers: Numbers
) -> None:
    first, second = location.open(), location.open()
    first._manifests.commit(*first.stage(numbers(0, 2), checkpoint(1)))
    assert second.last() == 1
    assert location.ids() == [0, 1]


def test_a_checkpoint_that_is_held_is_not_written_again(
    location: SinkLocation, numbers: Numbers
) -> None:
    """By the same run or by another; nor is one written out of order. # proves G14"""
    first, second = location.open(), location.open()
    first.write(numbers(0, 2), checkpoint(1))
    first.write(numbers(10, 12), checkpoint(1))
    second.write(numbers(20, 22), checkpoint(1))
    first.write(numbers(2, 4), checkpoint(2))
    second.write(numbers(20, 22), checkpoint(2))
    first.write(numbers(30, 32), checkpoint(1))
    assert location.ids() == [0, 1, 2, 3]
    for number in (0, 4):
        with pytest.raises(UsageError, match=rf"checkpoint {number} of .* does not follow 2, the"):
            second.write(numbers(0, 2), checkpoint(number))
    with pytest.raises(UsageError, match="which was opened for generation g1 of task"):
        second.write(numbers(0, 2), checkpoint(3, "g2"))


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_a_run_that_was_given_up_and_its_successor(
    location: SinkLocation, numbers: Numbers, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """One of them counts, whatever the order of their steps. # proves G14"""
    targets = {"old": location.open()}
    staged: dict[str, StagedFiles] = {}
    first = next(each for each in order if each.endswith("commit"))
    for run, step in (each.split() for each in order):
        if step == "open":
            targets[run] = location.open()
        elif step == "stage":
            start = 0 if run == "old" else 10
            staged[run] = targets[run].stage(numbers(start, start + 1), checkpoint(1))
        else:
            targets[run].commit(staged[run])
    assert location.ids() == ([0] if first.startswith("old") else [10])
    assert [each.last() for each in targets.values()] == [1, 1]
    assert data_files(tmp_path) == set(location.sink.files())


def test_what_a_crash_left_is_removed_once_its_checkpoint_is_there(
    location: SinkLocation, numbers: Numbers, tmp_path: Path
) -> None:
    left = location.open().stage(numbers(0, 2), checkpoint(1))
    second = location.open()
    assert len(data_files(tmp_path)) == len(left.files) == 2  # might be committed yet
    second.write(numbers(10, 12), checkpoint(1))
    location.open()
    assert data_files(tmp_path) == set(location.sink.files())
    assert location.ids() == [10, 11]


def test_a_task_that_is_tried_again_writes_once(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    """Its first attempt fails after it has written a file. # proves G14"""

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context
        if context.attemptNumber() == 0:
            deadline = time.monotonic() + 60
            while not data_files(tmp_path) and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            raise ValueError("the first attempt")

    location = SinkLocation(parquet(tmp_path / "movements", file_bytes=1), spark, workspace)
    rows = spark.range(0, 100_000, 1, 1).mapInArrow(fail_first, "id long")
    location.open().write(rows, checkpoint(1))
    assert location.ids() == list(range(100_000))
    assert data_files(tmp_path) > set(location.sink.files())
    location.open()
    assert data_files(tmp_path) == set(location.sink.files())


def test_a_file_is_ended_when_it_is_large(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    location = SinkLocation(parquet(tmp_path / "movements", file_bytes=40_000), spark, workspace)
    location.open().write(spark.range(0, 50_000, 1, 1), checkpoint(1))
    sizes = [Path(each).stat().st_size for each in location.sink.files()]
    assert len(sizes) > 1
    assert all(each >= 40_000 for each in sizes[:-1])
    assert location.ids() == list(range(50_000))


def test_types_and_odd_paths_come_back(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    location = SinkLocation(parquet(tmp_path / "a [b]*{c} d%20"), spark, workspace)
    rows = spark.range(1).selectExpr(
        "id",
        "CAST(1.5 AS DECIMAL(9, 2)) AS decimal",
        "DATE'1500-01-02' AS date",
        "TIMESTAMP'2024-01-02 03:04:05.678901' AS time",
        "TIMESTAMP_NTZ'2024-01-02 03:04:05' AS local",
        "CAST('x' AS BINARY) AS binary",
        "ARRAY(1, NULL) AS some",
        "MAP('a', NAMED_STRUCT('b', 1)) AS map",
    )
    location.open().write(rows, checkpoint(1))
    assert location.sink.read(spark).collect() == rows.collect()
    [found] = location.sink.table().to_pylist()
    assert found["time"] == datetime(2024, 1, 2, 3, 4, 5, 678901, UTC)


def test_on_s3_it_is_the_same(
    s3: S3Options, spark: SparkSession, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """# proves G14"""
    location = SinkLocation(parquet(f"s3://{BUCKET}/movements", **s3), spark, workspace)
    old, new = location.open(), location.open()
    staged = [
        each.stage(numbers(0, 2, name), checkpoint(1)) for each, name in ((old, "o"), (new, "n"))
    ]
    new.commit(staged[1])
    old.commit(staged[0])
    new.write(
        numbers(2, 4).selectExpr("id", "current_date() > DATE'2000-01-01' AS late"), checkpoint(2)
    )
    expected = [(0, "n 0", None), (1, "n 1", None), (2, None, True), (3, None, True)]
    assert sorted(map(tuple, location.sink.read(spark).collect())) == expected
    assert sorted(tuple(row.values()) for row in location.sink.table().to_pylist()) == expected
    assert location.open().last() == 2
    assert all(each.startswith(f"s3://{BUCKET}/movements/0000") for each in location.sink.files())


def test_a_relative_path_means_the_directory_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(parquet("movements")) == str(parquet(f"file://{tmp_path}/movements"))


def test_a_location_that_cannot_be_used_is_named(location: SinkLocation, tmp_path: Path) -> None:
    for wrong in ("", "memory://", "gs://bucket"):
        with pytest.raises(
            UsageError, match="is no location for Parquet files; use a path or s3://"
        ):
            parquet(wrong)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot open the directory in .*file/below: Not a dir"):
        SinkLocation(
            parquet(tmp_path / "file" / "below"), location._spark, location._workspace
        ).open()
    with pytest.raises(NotFoundError, match=r"there is no directory .*movements"):
        location.sink.table()
    location.open()
    with pytest.raises(ExistsError, match="task 'bank/totals' writes to"):
        location.open(task="other")
    with pytest.raises(ExistsError, match="this is generation g2, which would write it again"):
        location.open("g2")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["NULL AS a"], "column 'a' is void, which Parquet files cannot hold; cast it"),
        (["TIME'01:00:00' AS a"], r"column 'a' is time\(6\), which"),
        (["ARRAY(NULL) AS a"], "column 'a' is array<void>, which"),
        (["id", "id AS ID"], "two columns 'id'; rename one"),
        ([], "no columns; select at least one"),
    ],
)
def test_rows_that_files_cannot_hold_are_refused(
    location: SinkLocation, spark: SparkSession, columns: list[str], says: str
) -> None:
    with pytest.raises(SchemaError, match=says):
        location.open().write(spark.range(1).selectExpr(*columns), checkpoint(1))


def test_files_that_are_not_where_the_driver_looks_are_not_committed(
    location: SinkLocation, numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster whose machines do not share the directory."""
    target = location.open()
    monkeypatch.setattr(target._objects, "head", lambda key: None)
    with pytest.raises(
        StorageError, match=r"the driver does not find it in .*movements; use a directory that all"
    ):
        target.write(numbers(0, 2), checkpoint(1))
    assert location.open().last() == 0
