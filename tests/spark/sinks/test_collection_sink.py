"""A collection as a sink: a checkpoint is one transaction, published once."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import DataError, FencedError, NotFoundError, UsageError
from headrace.spark.sinks.collection_sink import CollectionSink, CollectionTarget
from tests.spark.sinks.conftest import Numbers, checkpoint


class SinkLocation:
    def __init__(self, spark: SparkSession, workspace: headrace.Workspace) -> None:
        workspace.collection("totals", "id long, name string", key="id", journals=3)
        self._spark = spark
        self._workspace = workspace

    def open(self, generation: str = "g1", task: str = "bank/totals") -> CollectionTarget:
        sink = CollectionSink("totals")
        return sink.open(self._spark, self._workspace, checkpoint(1, generation, task))

    def ids(self) -> list[int]:
        return sorted(self._workspace.table("totals")["id"].to_pylist())


@pytest.fixture
def location(spark: SparkSession, workspace: headrace.Workspace) -> SinkLocation:
    return SinkLocation(spark, workspace)


def test_a_checkpoint_is_published_once_whoever_has_the_sink_open(
    location: SinkLocation, numbers: Numbers
) -> None:
    """What is held is skipped, what leaves a gap is refused, who was replaced is. # proves G14"""
    old = location.open()
    assert old.last() == 0
    old.write(numbers(0, 3), checkpoint(1))
    old.write(numbers(0, 3), checkpoint(1))
    assert location.ids() == [0, 1, 2]
    new = location.open()
    assert new.last() == 1
    new.write(numbers(0, 3), checkpoint(1))
    with pytest.raises(UsageError, match=r"checkpoint 3 of task .* does not follow 1, the last"):
        new.write(numbers(3, 4), checkpoint(3))
    with pytest.raises(UsageError, match="which was opened for generation g1 of task"):
        new.write(numbers(3, 4), checkpoint(2, "g2"))
    with pytest.raises(FencedError):
        old.write(numbers(3, 6), checkpoint(2))
    assert location.ids() == [0, 1, 2]
    new.write(numbers(3, 3), checkpoint(2))
    new.write(numbers(3, 6), checkpoint(3))
    assert location.ids() == [0, 1, 2, 3, 4, 5]
    assert location.open().last() == 3
    assert location.open("g2").last() == 0


def test_a_write_that_fails_leaves_nothing(location: SinkLocation, numbers: Numbers) -> None:
    target = location.open()
    failing = numbers(0, 4).selectExpr(
        "id", "CASE WHEN id = 3 THEN raise_error('no') ELSE name END AS name"
    )
    with pytest.raises(Exception, match="no"):
        target.write(failing, checkpoint(1))
    assert location.ids() == []
    target.write(numbers(0, 4), checkpoint(1))
    assert location.ids() == [0, 1, 2, 3]


def test_what_cannot_be_a_sink_is_told(
    location: SinkLocation, spark: SparkSession, workspace: headrace.Workspace
) -> None:
    with pytest.raises(NotFoundError, match="'nothing'"):
        CollectionSink("nothing").open(spark, workspace, checkpoint(1))
    publisher = workspace.publisher("task/mine")
    publisher.begin().commit(b"not ours")
    publisher.close()
    with pytest.raises(DataError, match=r"publisher 'task/mine' was not used by a task.*; give"):
        location.open(task="mine")
