"""What a crashing task writes to, made alike in its driver and in the process that looks."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, sum

import headrace
from headrace.errors import NotFoundError
from headrace.spark.sinks.collection_sink import CollectionSink
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.jdbc import jdbc
from headrace.spark.sinks.jdbc_connection import Connection
from headrace.spark.sinks.parquet import parquet
from headrace.spark.sinks.store_sink import timeseries, vectors
from headrace.spark.tasks.cut import Cut
from headrace.stores.service.store_access import create_store, open_store
from tests.spark.bank import Bank

Kind = Literal["collection", "parquet", "jdbc", "timeseries", "vectors"]
StoreKindName = Literal["timeseries", "vectors"]
_COLUMNS = ("account", "cents", "movements")


class Seen(NamedTuple):
    """What is visible at a moment."""

    movements: int
    cents: int
    """Of all whole transfers together: zero."""


class Output(Protocol):
    @property
    def sink(self) -> Sink: ...

    def function(self, cut: Cut) -> DataFrame: ...

    def watch(self, spark: SparkSession) -> None:
        """In the driver, again and again."""

    def look(self) -> Seen: ...

    def check(self, bank: Bank) -> None:
        """After the last batch: everything is there, once."""


def output(kind: Kind, workspace: headrace.Workspace, folder: Path) -> Output:
    match kind:
        case "collection":
            return _Collected(workspace)
        case "parquet":
            return _Files(folder)
        case "jdbc":
            return _Balances(folder)
        case "timeseries" | "vectors":
            return _Stored(kind, folder / "store")


class _Table:
    def table(self) -> pa.Table:
        raise NotImplementedError

    def function(self, cut: Cut) -> DataFrame:
        return cut.debits.unionByName(cut.credits)

    def watch(self, spark: SparkSession) -> None: ...

    def look(self) -> Seen:
        table = self.table()
        return Seen(table.num_rows, pc.sum(table["cents"]).as_py() or 0)

    def check(self, bank: Bank) -> None:
        table = self.table()
        found = zip(*(table[name].to_pylist() for name in ("number", "cents")), strict=True)
        assert sorted(found) == bank.movements()


class _Collected(_Table):
    """Documents of a collection."""

    def __init__(self, workspace: headrace.Workspace) -> None:
        self._workspace = workspace
        self.sink = CollectionSink("movements")

    def table(self) -> pa.Table:
        return self._workspace.table("movements")


class _Files(_Table):
    """Parquet files."""

    def __init__(self, folder: Path) -> None:
        self.sink = parquet(folder / "files")

    def table(self) -> pa.Table:
        return self.sink.table()

    def look(self) -> Seen:
        try:
            return super().look()
        except NotFoundError:
            return Seen(0, 0)


class _Stored:
    """Samples or vectors in a store: one for each movement, whose number and cents they are.

    The store is one that every process opens, and the one that has it open may be any of them.
    """

    def __init__(self, kind: StoreKindName, path: Path) -> None:
        create_output_store(kind, path)
        self._kind = kind
        self._path = path
        self.sink = {"timeseries": timeseries, "vectors": vectors}[kind](path)

    def function(self, cut: Cut) -> DataFrame:
        moved = cut.debits.unionByName(cut.credits)
        if self._kind == "timeseries":
            return moved.selectExpr(
                "number AS timestamp", "double(cents) AS value", "account", "'cents' AS __name__"
            )
        return moved.selectExpr(
            "concat_ws('/', number, account) AS id", "array(float(cents)) AS vector", "number"
        )

    def watch(self, spark: SparkSession) -> None: ...

    def look(self) -> Seen:
        found = self._movements()
        return Seen(len(found), builtins.sum(cents for _, cents in found))

    def check(self, bank: Bank) -> None:
        assert self._movements() == bank.movements()

    def _movements(self) -> list[tuple[int, int]]:
        with open_store(self._path) as store:
            table = pa.Table.from_batches(store.scan(), store.schema)
        if self._kind == "timeseries":
            numbers = table["timestamp"].cast(pa.int64()).to_pylist()
            cents = table["value"].to_pylist()
        else:
            numbers = table["number"].to_pylist()
            cents = [vector[0] for vector in table["vector"].to_pylist()]
        return sorted((number, int(each)) for number, each in zip(numbers, cents, strict=True))


def create_output_store(kind: StoreKindName, path: Path) -> None:
    """Create the store, unless it is there."""
    if kind == "vectors":
        create_store(path, kind, dimension=1, metric="l2", metadata={"number": "long"})
    else:
        create_store(path, kind)


class _Balances:
    """A row for each account, in a database that only the driver's JVM can open.

    A batch adds to what the table holds, so it would count twice if it were applied twice.
    """

    def __init__(self, folder: Path) -> None:
        self._url = f"jdbc:derby:{folder}/derby;create=true"
        self._copy = folder / "balances"
        self._connection: Connection | None = None
        self.sink = jdbc(self._url, "balances", key=["account"])

    def function(self, cut: Cut) -> DataFrame:
        moved = cut.debits.unionByName(cut.credits).withColumn("movements", lit(1))
        held = moved.sparkSession.read.jdbc(self._url, "balances").toDF(*_COLUMNS)
        both = held.unionByName(moved.select(*_COLUMNS))
        return both.groupBy("account").agg(*(sum(each).alias(each) for each in _COLUMNS[1:]))

    def watch(self, spark: SparkSession) -> None:
        """Copies what the table holds at one moment."""
        database = self._opened(spark)
        # Locks whatever it reads until it has read everything.
        rows = database.query("SELECT account, cents, movements FROM balances WITH RR")
        copy = self._copy.with_suffix(".part")
        copy.write_text("".join(f"{' '.join(map(str, row))}\n" for row in rows))
        copy.rename(self._copy)

    def _opened(self, spark: SparkSession) -> Connection:
        if self._connection is None:
            given = {"url": self._url, "dbtable": "balances"}
            self._connection = Connection(spark, "the test", given)
            if not self._connection.tables("", re.compile("balances")):
                self._connection.update(
                    "CREATE TABLE balances (account VARCHAR(20) NOT NULL PRIMARY KEY,"
                    " cents BIGINT NOT NULL, movements BIGINT NOT NULL)"
                )
        return self._connection

    def look(self) -> Seen:
        rows = self._rows().values()
        return Seen(*(builtins.sum(row[n] for row in rows) for n in (1, 0)))

    def check(self, bank: Bank) -> None:
        assert self._rows() == bank.balances()

    def _rows(self) -> dict[str, tuple[int, int]]:
        if not self._copy.exists():
            return {}
        rows = map(str.split, self._copy.read_text().splitlines())
        return {account: (int(cents), int(movements)) for account, cents, movements in rows}
