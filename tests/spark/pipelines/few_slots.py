"""A pipeline of five stages on one slot: prints what it made, and how it ran, as JSON."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.spark.spark_session import temporary_session


def double(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"kind": pc.bit_wise_and(batch["id"], 1), "n": pc.multiply(batch["id"], 2)})


def total(rows: DataFrame) -> DataFrame:
    return rows.groupBy("kind").agg(F.sum("n").alias("n"))


def add_one(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"kind": batch["kind"], "n": pc.add(batch["n"], 1)})


def is_there(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater(batch["n"], 0)


def main(folder: Path) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("headrace").addHandler(handler)
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    out = hr.parquet(folder / "out")
    with (
        hr.open(folder / "workspace") as workspace,
        temporary_session(1, master="local[1,4]", conf=conf, log=folder / "spark.log") as spark,
    ):
        summary = (
            hr.pipeline("few", workspace)
            .source(spark.range(100), rows_per_unit=10)
            .map_batches(double, workers=2, expensive=True, resources={"gpu": 1})
            .spark(total)
            .map_batches(add_one, workers=2)
            .filter(is_there, durable=True)
            .sink(out)
            .run(spark)
        )
    found = sorted(zip(*out.table().select(["kind", "n"]).to_pydict().values(), strict=True))
    print(json.dumps({"outcome": summary.outcome, "rows": found, "lines": lines}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
