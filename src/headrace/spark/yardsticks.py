"""Yardsticks for `headrace bench spark`, which runs one aggregation over several data sources.

The yardsticks are Python data sources without a store: one yields Arrow batches from mapped files,
one yields rows. Their speed is the most that Spark allows a data source in Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

PARTITIONS = 2
_TRIGGER_MS = 1000
_WARMING = 5
_LOOK_S = 1


class Drained(NamedTuple):
    """A backlog that a query has aggregated."""

    seconds: float
    rows: int
    micro_batches: int


def aggregate(rows: DataFrame) -> None:
    rows.groupBy("account").sum("cents").write.format("noop").mode("overwrite").save()


def drain(rows: DataFrame, location: Path) -> Drained:
    """Run a query until it has aggregated everything, and return what it took."""
    begin = perf_counter()
    query = (
        rows.writeStream.foreachBatch(lambda batch, number: aggregate(batch))
        .option("checkpointLocation", location.as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = perf_counter() - begin
    done = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    return Drained(seconds, sum(done), len(done))


def batch_s(rows: DataFrame) -> float:
    """Return the seconds of the second of two aggregations over a batch read."""
    aggregate(rows)
    begin = perf_counter()
    aggregate(rows)
    return perf_counter() - begin


def trigger_ms(
    rows: DataFrame, location: Path, feed: Callable[[], None], micro_batches: int
) -> float:
    """Return the median duration of triggers. `feed` provides the input of each beforehand."""
    query = (
        rows.writeStream.foreachBatch(lambda batch, number: aggregate(batch))
        .option("checkpointLocation", location.as_uri())
        .trigger(processingTime=f"{_TRIGGER_MS} milliseconds")
        .start()
    )
    try:
        taken: list[int] = []
        while len(taken) < micro_batches + _WARMING:
            feed()
            before = len(taken)
            while len(taken) == before:
                query.awaitTermination(_LOOK_S)
                taken = [
                    each.durationMs["triggerExecution"]
                    for each in query.recentProgress
                    if each.numInputRows
                ]
    finally:
        query.stop()
    return float(median(taken[_WARMING:]))


def register_yardsticks(spark: SparkSession) -> None:
    spark.dataSource.register(BareBatches)
    spark.dataSource.register(BareRows)


class _Bare(DataSource):
    """A data source over Arrow files, with these options:

    `files`: the files, each of which is a partition; `microBatches`: into how many micro-batches
    the files are divided; `isEndless`: `true` if they begin again after the last.
    """

    def schema(self) -> StructType:
        with pa.ipc.open_file(self.options["files"].split(",")[0]) as file:
            return from_arrow_schema(file.schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _BareReader(dict(self.options), self.yields_rows)

    yields_rows = False


class BareBatches(_Bare):
    @classmethod
    def name(cls) -> str:
        return "bare_batches"


class BareRows(_Bare):
    yields_rows = True

    @classmethod
    def name(cls) -> str:
        return "bare_rows"


class _BareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], yields_rows: bool) -> None:
        self._files = options["files"].split(",")
        self._micro_batches = int(options["microbatches"])
        self._is_endless = options["isendless"] == "true"
        self._yields_rows = yields_rows

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        following = start["batch"] + 1
        return {"batch": following if self._is_endless else min(following, self._micro_batches)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the source has an end already."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        number = start["batch"] % self._micro_batches
        return [] if start == end else [InputPartition((file, number)) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        file, number = partition.value
        batches = _batches(file, number, self._micro_batches)
        if not self._yields_rows:
            return batches
        columns = ([each.to_pylist() for each in batch.columns] for batch in batches)
        return itertools.chain.from_iterable(zip(*each, strict=True) for each in columns)

    def commit(self, end: dict[str, int]) -> None: ...


def _batches(file: str, number: int, of: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one micro-batch from a mapped file."""
    with pa.memory_map(file) as mapped, pa.ipc.open_file(mapped) as opened:
        count = opened.num_record_batches
        for each in range(count * number // of, count * (number + 1) // of):
            yield opened.get_batch(each)
