"""The same transfers through two plain sources, and through one cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.journal.names import parse_journal_name
from headrace.testing.crash import eventually
from tests.spark.bank import Bank

COLUMNS = "number long, account string, cents long"


def sums(rows: DataFrame, location: Path) -> Callable[[], list[int]]:
    """Return a function that runs the query once and returns the sum of each micro-batch."""

    def look() -> list[int]:
        seen: list[int] = []

        def add(batch: DataFrame, number: int) -> None:
            found = batch.selectExpr("count(*)", "sum(cents)").first()
            if found and found[0]:
                seen.append(found[1])

        writer = rows.writeStream.foreachBatch(add).option("checkpointLocation", str(location))
        writer.trigger(availableNow=True).start().awaitTermination()
        return seen

    return look


def written(workspace: headrace.Workspace) -> set[str]:
    """Return the collections whose journals have documents, committed or not."""
    names = (each.name for each in workspace.journals() if each.head > each.begin)
    return {parse_journal_name(name).collection for name in names}


def test_two_plain_sources_show_half_of_a_transfer(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing keeps a reader of files from looking when one of two files is written."""
    folders = [tmp_path / name for name in ("debits", "credits")]
    for folder in folders:
        folder.mkdir()
    debits, credits = (spark.readStream.schema(COLUMNS).json(str(each)) for each in folders)
    look = sums(debits.unionByName(credits), tmp_path / "spark")
    seen = []
    for sign, folder in zip((-1, 1), folders, strict=True):
        row = {"number": 1, "account": "ann", "cents": sign * 500}
        (folder / "1.json").write_text(json.dumps(row))
        seen += look()
    assert seen == [-500, 500]


# proves G14
@pytest.mark.parametrize("commits", [True, False])
def test_one_cut_shows_transfers_whole(spark: SparkSession, tmp_path: Path, commits: bool) -> None:
    """The query looks when the debits are in their journals and the credits are not."""
    unbuffered = headrace.Settings(journal=headrace.JournalSettings(transaction_buffer_bytes=1))
    with headrace.open(tmp_path / "workspace", settings=unbuffered) as workspace:
        bank = Bank(workspace)
        cents = "coalesce(`bank/debits`.cents, `bank/credits`.cents) AS cents"
        look = sums(bank.stream(spark).selectExpr(cents), tmp_path / "spark")
        transaction = workspace.publisher().begin()
        transaction.append(bank.debits, [{"number": 1, "account": "ann", "cents": -500}])
        eventually(lambda: written(workspace) == {"bank/debits"}, 30, "the debits in a journal")
        assert look() == []
        transaction.append(bank.credits, [{"number": 1, "account": "bob", "cents": 500}])
        assert look() == []
        if commits:
            transaction.commit()
        else:
            transaction.rollback()
        assert look() == ([0] if commits else [])
