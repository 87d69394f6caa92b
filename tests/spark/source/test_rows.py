"""Rows that say where their documents stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import headrace
from tests.spark.bank import Bank

Standing = tuple[int, str, int, str, str]

META = ["_journal", "_clock", "_producer", "_binding"]


def standing(workspace: headrace.Workspace, *collections: str) -> set[Standing]:
    return {
        (row["number"], row["_journal"], row["_clock"], row["_producer"], name)
        for name in collections
        for row in workspace.table(name, meta=True).to_pylist()
    }


def test_meta_of_streams_and_batches_is_that_of_the_journals(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    bank = Bank(workspace)
    bank.transfer(20)
    bank.transfer(3)
    names = "bank/debits", "bank/credits"
    number = "coalesce(`bank/debits`.number, `bank/credits`.number)"
    seen: list[tuple[Any, ...]] = []
    rows = bank.stream(spark, meta="true")
    assert rows.columns == [*names, *META]
    query = (
        rows.writeStream.foreachBatch(
            lambda cut, _: seen.extend(map(tuple, cut.selectExpr(number, *META).collect()))
        )
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    expected = standing(workspace, *names)
    assert len(seen) == len(expected) == 46
    assert set(seen) == expected

    def read(**options: str) -> DataFrame:
        reader = spark.read.format("headrace").option("workspace", str(workspace.directory))
        return reader.options(meta="true", **options).load()

    batch = read(collections=",".join(names), partitions="2").selectExpr(number, *META)
    assert {tuple(row) for row in batch.collect()} == expected
    single = read(collections=names[0])
    assert single.columns == ["number", "account", "cents", *META]
    found = single.select("number", *META).collect()
    assert {tuple(row) for row in found} == standing(workspace, names[0])
    replayed = read(collections=names[0], task="bank").select("number", *META).collect()
    assert sorted(replayed) == sorted(found)
