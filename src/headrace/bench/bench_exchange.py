"""Compares a shuffle through the exchange with Spark's own, plain and made durable."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bench.exchange_data import DATA_SETS, SUMS, DataSet, hash_rows, pass_on, sum_rows
from headrace.bench.steps import step
from headrace.exchange import AttemptCleanup, list_stages
from headrace.pipeline.source.unit_scan import FileScan, FileScanUnit
from headrace.plan.query import Query, QueryHome
from headrace.settings import MIB
from headrace.spark.plan_runner import PlanRunner
from headrace.spark.spark_session import temporary_session
from headrace.storage import open_objects

Reduce = Callable[[pa.RecordBatch], pa.RecordBatch]

_UNITS = 8
_PARTITIONS = 8
_SEED = 7
_SUMS_DDL = "rows long, sum long"


class _Totals(NamedTuple):
    rows: int
    sum: int
    """Modulo 2^64."""


def bench_exchange(
    directory: Path, scale: float = 1.0, rounds: int = 5, data_sets: Sequence[DataSet] = DATA_SETS
) -> dict[str, float]:
    """Measure shuffles by key, from the start of a query until its result is here.

    All engines read the same units of Parquet files, with the same function, and add the rows up
    after the shuffle, in Python, two tasks at once. Our rows are synced, those of a checkpoint are
    not. A ratio is the median over rounds of our time divided by that of Spark; one without the
    name of a data set is the worst of all data sets.
    """
    directory = directory.absolute()
    step("starting Spark")
    conf = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    measured: dict[str, float] = {}
    with temporary_session(0, master="local[2]", conf=conf, log=directory / "spark.log") as spark:
        for data in data_sets:
            step(f"{data.name}: generating rows")
            files = directory / data.name
            files.mkdir()
            table = data.generate(np.random.default_rng(_SEED), max(_UNITS, int(data.rows * scale)))
            rows_per_unit = -(-table.num_rows // _UNITS)
            pq.write_table(table, files / "rows.parquet", rows_per_unit, use_dictionary=False)
            engines = _Engines(spark, directory, data, rows_per_unit)
            measured |= _compare(data.name, engines, table, rounds)
            shutil.rmtree(files)
    worst = {
        f"ratio_{kind}": max(measured[f"{data.name}_ratio_{kind}"] for data in data_sets)
        for kind in ("durable", "plain")
    }
    return worst | measured


class _Engines:
    """Runs the same shuffle in each engine, and returns what is left of the rows."""

    def __init__(self, spark: Any, directory: Path, data: DataSet, rows_per_unit: int) -> None:
        self._spark = spark
        self._data = data
        self._objects = open_objects(str(directory / "objects"))
        self._checkpoints = directory / "checkpoints"
        self._scan = FileScan(str(directory / data.name / "*.parquet"), rows_per_unit)
        self._runs = 0

    def ours(self, reduce: Reduce) -> pa.Table:
        self._runs += 1
        home = QueryHome(lambda: self._objects, PlanRunner)
        query = Query.scan(self._scan, home).map(pass_on, schema=self._scan.schema)
        query = query.repartition("key", partitions=_PARTITIONS).map(reduce, schema=SUMS)
        return query.run(f"{self._data.name} {self._runs}", self._spark).table()

    def plain(self, reduce: Reduce) -> pa.Table:
        return self._reduced(self._shuffled(), reduce)

    def durable(self, reduce: Reduce) -> pa.Table:
        return self._reduced(self._shuffled().checkpoint(), reduce)

    def settle(self) -> None:
        """Remove what the last run left, so that no run pays for the writes of another."""
        for query_id in {each.query_id for each in list_stages(self._objects)}:
            AttemptCleanup(self._objects).remove_query(query_id)
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        self._spark.sparkContext.setCheckpointDir(str(self._checkpoints))
        os.sync()

    def _shuffled(self) -> Any:
        units = self._scan.units()
        numbers = self._spark.range(0, len(units), 1, len(units))
        mapped = numbers.mapInArrow(partial(_read_units, units), self._data.ddl)
        return mapped.repartition(_PARTITIONS, "key")

    def _reduced(self, shuffled: Any, reduce: Reduce) -> pa.Table:
        return shuffled.mapInArrow(partial(_reduce_batches, reduce), _SUMS_DDL).toArrow()


def _read_units(
    units: Sequence[FileScanUnit], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read units, and pass their rows on in a form that Spark takes."""
    for number in (each for batch in numbers for each in batch["id"].to_pylist()):
        for batch in units[number].read().to_batches():
            yield _for_spark(pass_on(batch))


def _for_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark takes lists, and none of a fixed size."""
    value = batch["value"]
    if isinstance(value, pa.FixedSizeListArray):
        ends = np.arange(len(value) + 1, dtype=np.int32) * value.type.list_size
        value = pa.ListArray.from_arrays(pa.array(ends), value.flatten())
    return pa.record_batch({"key": batch["key"], "value": value})


def _reduce_batches(reduce: Reduce, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return map(reduce, batches)


def _compare(name: str, engines: _Engines, table: pa.Table, rounds: int) -> dict[str, float]:
    """Compare the rows of the engines first, which also warms them up, then their times.

    Another engine is the first one in each round.
    """
    runs = {"ours": engines.ours, "plain": engines.plain, "durable": engines.durable}
    step(f"{name}: comparing rows")
    for reduce in (hash_rows, sum_rows):
        wanted = _totals(pa.Table.from_batches([reduce(each) for each in table.to_batches()]))
        for run in runs.values():
            engines.settle()
            assert (found := _totals(run(reduce))) == wanted, (name, found, wanted)
    times: dict[str, list[float]] = {each: [] for each in runs}
    order = list(runs)
    for round in range(rounds):
        step(f"{name}: round {round + 1} of {rounds}")
        for engine in order:
            engines.settle()
            begin = perf_counter()
            found = runs[engine](sum_rows)
            times[engine].append(perf_counter() - begin)
            assert _totals(found) == wanted, (name, engine)
        order = [*order[1:], order[0]]
    engines.settle()
    return {
        f"{name}_ratio_durable": _ratio(times["ours"], times["durable"]),
        f"{name}_ratio_plain": _ratio(times["ours"], times["plain"]),
        f"{name}_s": median(times["ours"]),
        f"spark_durable_{name}_s": median(times["durable"]),
        f"spark_plain_{name}_s": median(times["plain"]),
        f"{name}_mib": table.nbytes / MIB,
    }


def _totals(sums: pa.Table) -> _Totals:
    return _Totals(
        int(sums["rows"].to_numpy().sum()), int(sums["sum"].to_numpy().sum()) % (1 << 64)
    )


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(one / other for one, other in zip(ours, theirs, strict=True))
