"""The data source `headrace` in batch reads."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.journal.contract import JournalInfo
from headrace.shuffle import History
from headrace.shuffle.batch.journal_scan import Scan
from headrace.shuffle.checkpoints.checkpoint_history import reset_task
from headrace.spark.sinks.contract import CheckpointId
from headrace.spark.source.batch import balanced
from headrace.spark.tasks.cut import Cut
from tests.spark.bank import Bank

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def read(spark: SparkSession, workspace: headrace.Workspace, **options: str) -> DataFrame:
    reader = spark.read.format("headrace").option("workspace", str(workspace.directory))
    return reader.options(**options).load()


def numbers(rows: DataFrame) -> list[int]:
    return sorted(row[0] for row in rows.select("n").collect())


def test_a_batch_is_one_cut_over_all_collections(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    bank = Bank(workspace)
    bank.transfer(20)
    rows = read(spark, workspace, collections="bank/debits,bank/credits", partitions="3")
    bank.transfer(5)
    found = rows.collect()
    assert len(found) == 40
    assert all((row[0] is None) != (row[1] is None) for row in found)
    assert sum((row[0] or row[1])["cents"] for row in found) == 0
    bindings = [headrace.Binding(collection=each.name) for each in (bank.debits, bank.credits)]
    cut = Cut(rows, bindings, CheckpointId("bank", "", 1))
    both = cut.debits.unionByName(cut.credits)
    bank.transfer(5)
    assert both.selectExpr("count(*)", "sum(cents)").collect() == [(40, 0)]


def test_of_one_source_rows_have_its_columns_and_an_empty_one_has_none(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    workspace.collection("a", "n long, at timestamp, tags array<string>", journals=5)
    empty = read(spark, workspace, collections="a")
    assert empty.schema.simpleString() == "struct<n:bigint,at:timestamp,tags:array<string>>"
    for n in range(10):
        workspace.append("a", [{"n": n, "tags": ["x"]}])
    assert empty.collect() == []
    rows = read(spark, workspace, collections="a")
    assert rows.rdd.getNumPartitions() == 5
    assert numbers(rows) == list(range(10))


def test_bindings_give_selectors_and_clock_windows(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    workspace.collection("a", "n long, part string", partition_by="part")
    for n, part in enumerate("xyx"):
        workspace.append("a", [{"n": n, "part": part}])
    last = workspace.table("a", meta=True).sort_by("n")["_clock"].to_pylist()[-1]
    binding = {"collection": "a", "selector": {"include": {"part": ["x"]}}, "not_after": last - 1}
    assert numbers(read(spark, workspace, bindings=json.dumps([binding]))) == [0]


def test_checkpoints_of_a_task_give_what_their_micro_batches_showed(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    """# proves G14"""
    bank = Bank(workspace)
    shown: list[Counter[Any]] = []
    rows = bank.stream(spark)
    for transfers in (5, 4):
        bank.transfer(transfers)
        query = (
            rows.writeStream.foreachBatch(lambda cut, _: shown.append(Counter(cut.collect())))
            .option("checkpointLocation", str(tmp_path / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert sum(map(len, shown)) == 18

    def between(**options: str) -> Counter[Any]:
        names = "bank/debits,bank/credits"
        return Counter(read(spark, workspace, collections=names, task="bank", **options).collect())

    assert between() == sum(shown, Counter())
    assert between(fromCheckpoint="1") == sum(shown[1:], Counter())
    assert between(fromCheckpoint="0", toCheckpoint="1") == shown[0]
    made = read(spark, workspace, collections="bank/debits,bank/credits", task="bank")
    History(workspace.objects, "bank", full_every=1).release(1)
    assert between() == sum(shown[1:], Counter()), "all that are kept"
    with pytest.raises(PySparkException, match="checkpoint 0 of task 'bank' was released"):
        made.collect()
    made = read(spark, workspace, collections="bank/debits", task="bank")
    reset_task(workspace.objects, "bank")
    with pytest.raises(PySparkException, match="it was reset"):
        made.collect()


@pytest.fixture
def labelled(workspace: headrace.Workspace) -> headrace.Workspace:
    schema = "n long, region string, level int, open boolean, day date"
    workspace.collection("a", schema, partition_by="region,level,open,day")
    for n in range(8):
        document = {
            "n": n,
            "region": ["eu", "a/b", "", None][n % 4],
            "level": [7, -7][n // 4],
            "open": [True, None][n % 2],
            "day": date(2026, 11, 14 + n % 2),
        }
        workspace.append("a", [document])
    return workspace


@pytest.mark.parametrize(
    ("where", "found", "opened"),
    [
        ("region in ('a/b', '', null) and level = 7L", [1, 2], 2),
        ("region <=> null and open is null and day = date'2026-11-15'", [3, 7], 2),
        ("region = 'nowhere'", [], 1),
        ("region <> 'eu' and (region = 'a/b' or level = 7)", [1, 2, 5], 8),
    ],
)
def test_filters_on_partition_columns_narrow_what_is_opened_and_nothing_else(
    spark: SparkSession, labelled: headrace.Workspace, where: str, found: list[int], opened: int
) -> None:
    rows = read(spark, labelled, collections="a", partitions="100").where(where)
    assert numbers(rows) == found
    assert rows.rdd.getNumPartitions() == opened


def test_a_batch_is_the_same_where_filters_are_not_pushed_down(
    spark: SparkSession, labelled: headrace.Workspace
) -> None:
    spark.conf.set(PUSHDOWN, "false")
    try:
        rows = read(spark, labelled, collections="a", partitions="100").where("region = 'eu'")
        assert numbers(rows) == [0, 4]
        assert rows.rdd.getNumPartitions() == 8
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_what_a_batch_or_a_stream_cannot_have_is_refused_in_one_line(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    bank = Bank(workspace)
    with pytest.raises(PySparkException) as refused:
        read(spark, workspace, collections="bank/debits", shards="2").collect()
    message = "option 'shards' is for a stream, and this is a batch; leave it out"
    assert any(message in line for line in str(refused.value).splitlines())
    with pytest.raises(PySparkException) as refused:
        read(spark, workspace, collections="bank/debits", task="stranger").collect()
    message = "there is no task 'stranger'; check its name"
    assert any(message in line for line in str(refused.value).splitlines())
    with pytest.raises(PySparkException) as refused:
        bank.stream(spark, partitions="4").writeStream.format("noop").start().awaitTermination()
    message = "option 'partitions' is for a batch, and this is a stream; leave it out, or use read"
    assert any(message in line for line in str(refused.value).splitlines())


def test_journals_are_spread_evenly_by_their_bytes() -> None:
    def scan(size: int) -> Scan:
        return Scan(JournalInfo(1, "a/0000", 0, size, 1), 0)  # type: ignore[arg-type]

    groups = balanced([scan(size) for size in (1, 90, 30, 2, 30, 30)], 3)
    assert sorted(sum(each.bytes for each in group) for group in groups) == [33, 60, 90]
    assert len(balanced([scan(1)], 3)) == 1
    assert balanced([], 3) == []
