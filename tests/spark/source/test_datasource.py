"""The data source `headrace` in streaming queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import headrace
from headrace.shuffle.checkpoints.checkpoint_feed import Feed
from headrace.spark.source.dataframes import read, stream
from headrace.spark.source.datasource import HeadraceSource
from tests.spark.bank import Bank


def test_every_micro_batch_is_one_cut(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    """Transfers are in two collections, and each batch sums to zero. # proves G14"""
    bank = Bank(workspace)
    seen: list[tuple[int, int]] = []

    def look(rows: DataFrame, batch: int) -> None:
        cents = "coalesce(`bank/debits`.cents, 0) + coalesce(`bank/credits`.cents, 0)"
        found = rows.selectExpr("count(*)", f"sum({cents})").first()
        assert found
        seen.append((found[0], found[1]))

    rows = stream(spark, workspace, [bank.debits, bank.credits], "bank")
    for transfers in (30, 10):
        bank.transfer(transfers)
        query = (
            rows.writeStream.foreachBatch(look)
            .option("checkpointLocation", str(tmp_path / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert seen == [(60, 0), (20, 0)]
    batch = read(spark, workspace, ["bank/debits"])
    assert batch.columns == ["number", "account", "cents"]
    assert batch.count() == 40


def test_a_limit_bounds_micro_batches_and_the_start_bounds_an_available_now_query(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    workspace.collection("numbers", "number long", key="number", journals=2)
    count, most, each = 3000, 200, 20
    for first in range(0, count, each):
        workspace.append("numbers", [{"number": first + at} for at in range(each)])
    seen: list[list[int]] = []

    def look(rows: DataFrame, batch: int) -> None:
        # More comes while it runs, which is for the next query.
        workspace.append("numbers", [{"number": -1 - batch}])
        seen.append([row.number for row in rows.collect()])

    rows = stream(spark, workspace, ["numbers"], "limited", documents_max=most)
    writer = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(number for some in seen for number in some) == list(range(count))
    assert max(map(len, seen)) <= most + each
    batches = len(seen)
    writer.trigger(availableNow=True).start().awaitTermination()
    late = [number for some in seen[batches:] for number in some]
    assert sorted(late) == list(range(-batches, 0))


def test_what_spark_is_told_to_wait_and_to_take_is_what_members_are_asked(
    workspace: headrace.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.collection("numbers", "number long")
    asked: list[tuple[int, float | None, int | None]] = []

    def after(
        feed: Feed, number: int, timeout_s: float | None, *, documents_max: int | None
    ) -> int:
        asked.append((number, timeout_s, documents_max))
        return number

    monkeypatch.setattr(Feed, "after", after)
    options = {
        "workspace": workspace.location,
        "collections": "numbers",
        "task": "t",
        "pollSeconds": "0.25",
        "maxDocumentsPerTrigger": "7",
    }
    source = HeadraceSource(options)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    assert reader.latestOffset(start, limit) == start
    reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    bounded = source.streamReader(source.schema())
    bounded.prepareForTriggerAvailableNow()
    bounded.latestOffset(start, limit)
    bounded.stop()
    assert asked == [(0, 0.25, 7), (0, 0.25, None), (0, None, 7)]
