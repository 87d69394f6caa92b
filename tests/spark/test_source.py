"""The data source `headrace` in streaming queries."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.spark.frames import read, stream
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
