"""Compares a Spark aggregation of a backlog with the fastest source that Spark allows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace
from headrace.bench.bench_journal import SCHEMA, documents, publish
from headrace.bench.processes import divide_cores, keep_on_cores, on_cores, owner
from headrace.bench.steps import step
from headrace.settings import MIB
from headrace.spark.spark_members import SparkMembers
from headrace.spark.spark_session import temporary_session
from headrace.spark.yardsticks import PARTITIONS, batch_s, drain, register_yardsticks, trigger_ms

_ROUNDS = 3
_JOURNALS = 8
_BATCH = 8192
_SMALL = 1000


def bench_spark(
    directory: Path, mib: int = 512, journals: int = 1000, triggers: int = 15
) -> dict[str, float]:
    """Measure rates from the start of a query until its aggregation has all rows; return medians.

    The members run already. With four cores or more, they have one half of them, and Spark has the
    other, also for the yardsticks. Those yield the same documents from mapped files, in as many
    micro-batches and in Arrow batches of about the same size. The overhead compares whole triggers,
    each of a transaction over `journals` journals, with a source that yields as many rows.
    """
    spark_cores, member_cores = divide_cores(os.sched_getaffinity(0))
    with on_cores(spark_cores):
        found = _bench(directory.absolute(), mib, journals, triggers, member_cores)
    return {**found, "cores_of_spark": len(spark_cores), "cores_of_members": len(member_cores)}


def _bench(
    directory: Path, mib: int, journals: int, triggers: int, member_cores: set[int]
) -> dict[str, float]:
    step("generating documents, and starting Spark")
    batch = documents(_BATCH, 68)
    transactions = PARTITIONS * max(1, mib * MIB // len(batch.serialize()) // PARTITIONS)
    count = transactions * _BATCH
    files = [directory / f"{part}.arrow" for part in range(PARTITIONS)]
    for file in files:
        _write_arrow(file, batch, transactions // PARTITIONS)
    conf = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    location = directory / "workspace"
    with temporary_session(PARTITIONS, conf=conf, log=directory / "spark.log") as spark:
        register_yardsticks(spark)
        with owner(location) as owning, headrace.open(location) as workspace:
            step(f"publishing {count:,} documents")
            publish(workspace, "docs", [batch], transactions, _JOURNALS)
            bench = _SparkBench(directory, spark, location)
            with SparkMembers(spark, PARTITIONS) as members:
                keep_on_cores([owning, *members.processes], member_cores)
                bench.use(members)
                result = _rates(bench, files, transactions * _BATCH)
                step(f"{triggers} triggers over {journals:,} journals")
                result |= _overhead(bench, workspace, journals, triggers)
        step("the same documents as Parquet files")
        parquet = directory / "parquet"
        _write_parquet(parquet, batch, transactions)
        result["parquet_docs_per_s"] = count / batch_s(spark.read.parquet(str(parquet)))
    return {**result, "documents": count, "journals": journals}


class _SparkBench:
    """Opens the streams to measure, each with a checkpoint directory of its own."""

    def __init__(self, directory: Path, spark: Any, location: Path) -> None:
        self._directory = directory
        self._spark = spark
        self._location = location
        self._streams = 0
        self._options: dict[str, str] = {}

    def use(self, members: SparkMembers) -> None:
        self._options = {
            "workspace": str(self._location),
            "members": ",".join(members.addresses),
            "membersToken": members.service.token,
        }

    def ours(self, collection: str, **more: str) -> Any:
        self._streams += 1
        options = self._options | {"collections": collection, "task": f"task-{self._streams}"}
        options |= more
        return self._spark.readStream.format("headrace").options(**options).load()

    def bare(
        self, kind: str, files: Sequence[Path], micro_batches: int, *, is_endless: bool = False
    ) -> Any:
        options = {
            "files": ",".join(map(str, files)),
            "microBatches": str(micro_batches),
            "isEndless": str(is_endless).lower(),
        }
        return self._spark.readStream.format(kind).options(**options).load()

    def location(self) -> Path:
        self._streams += 1
        return self._directory / f"checkpoints-{self._streams}"


def _rates(bench: _SparkBench, files: Sequence[Path], count: int) -> dict[str, float]:
    ours: list[float] = []
    bare: list[float] = []
    rows: list[float] = []
    batches: list[int] = []
    for round in range(_ROUNDS):
        step(f"round {round + 1} of {_ROUNDS}: through the shuffle, and through bare sources")
        drained = drain(bench.ours("docs"), bench.location())
        assert drained.rows == count, (drained.rows, count)
        ours.append(drained.rows / drained.seconds)
        batches.append(drained.micro_batches)
        for kind, rates in (("bare_batches", bare), ("bare_rows", rows)):
            yardstick = drain(bench.bare(kind, files, drained.micro_batches), bench.location())
            assert yardstick.rows == count, (yardstick.rows, count)
            rates.append(yardstick.rows / yardstick.seconds)
    pairs = list(zip(ours, bare, rows, strict=True))
    return {
        "docs_per_s": median(ours),
        "source_limit_docs_per_s": median(bare),
        "rows_docs_per_s": median(rows),
        "ratio_to_source_limit": median(one / other for one, other, _ in pairs),
        "ratio_to_rows": median(one / other for one, _, other in pairs),
        "micro_batches": median(batches),
    }


def _overhead(
    bench: _SparkBench, workspace: headrace.Workspace, journals: int, triggers: int
) -> dict[str, float]:
    """Measure the overhead of a micro-batch of a thousand documents in many journals."""
    batch = documents(_SMALL, 68)
    collection = workspace.collection("many", SCHEMA, key="account", journals=journals)

    def feed() -> None:
        with workspace.publisher() as tx:
            tx.append(collection, batch)

    file = bench.location().with_suffix(".arrow")
    _write_arrow(file, batch.slice(0, _SMALL // PARTITIONS), 1)
    feed()
    # A trigger that polls while it is being fed would count the wait for its input.
    stream = bench.ours("many", pollSeconds="0")
    ours = trigger_ms(stream, bench.location(), feed, triggers)
    endless = bench.bare("bare_batches", [file] * PARTITIONS, 1, is_endless=True)
    trivial = trigger_ms(endless, bench.location(), lambda: None, triggers)
    return {"overhead_ms": ours - trivial, "trigger_ms": ours, "trivial_trigger_ms": trivial}


def _write_arrow(file: Path, batch: pa.RecordBatch, count: int) -> None:
    with pa.ipc.new_file(str(file), batch.schema) as stream:
        for _ in range(count):
            stream.write_batch(batch)


def _write_parquet(directory: Path, batch: pa.RecordBatch, count: int) -> None:
    directory.mkdir()
    for part in range(PARTITIONS):
        with pq.ParquetWriter(directory / f"{part}.parquet", batch.schema) as writer:
            for _ in range(count // PARTITIONS):
                writer.write_batch(batch)
