"""Two stages that need a GPU each, on a cluster: prints which GPU each row had, as JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

import headrace as hr
from headrace.spark.spark_session import temporary_session
from tests.spark.cluster import APPLICATION

GPUS = 2


class HoldGpu(hr.Operator):
    """Holds the GPU of its task as long as it is open. Fails if another worker has the same."""

    version = "1"

    def __init__(self, folder: Path, column: str) -> None:
        self._folder = folder
        self._column = column

    def setup(self) -> None:
        task = TaskContext.get()
        assert task
        (self._address,) = task.resources()["gpu"].addresses
        self._held = self._folder / self._address
        os.close(os.open(self._held, os.O_CREAT | os.O_EXCL))

    def process(self, batch: pa.RecordBatch) -> pa.Table:
        table = pa.Table.from_batches([batch])
        return table.append_column(self._column, pa.array([self._address] * batch.num_rows))

    def close(self) -> None:
        self._held.unlink()


def main(folder: Path, master: str) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("headrace").addHandler(handler)
    conf = APPLICATION | {
        "spark.ui.enabled": "false",
        "spark.cores.max": str(GPUS),
        "spark.executor.resource.gpu.amount": str(GPUS),
    }
    with (
        hr.open(folder / "workspace") as workspace,
        temporary_session(1, master=master, conf=conf, log=folder / "spark.log") as spark,
    ):
        pipeline = (
            hr.pipeline("gpus", workspace)
            .source(spark.range(100), rows_per_unit=5)
            .map_batches(
                HoldGpu(folder, "detected_on"), name="detect", workers=2, resources={"gpu": 1}
            )
            .map_batches(
                HoldGpu(folder, "described_on"), name="describe", workers=2, resources={"gpu": 1}
            )
        )
        outcome = pipeline.run(spark).outcome
        rows = pipeline.collect().to_pylist()
    print(json.dumps({"outcome": outcome, "rows": rows, "lines": lines}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
