"""A query whose calls of its map function are counted in a file, and which waits to be killed."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.spark.spark_session import session
from headrace.testing.crash import eventually
from tests.pipeline.jobs import numbers
from tests.plan.plan_rows import Rows
from tests.spark.cluster import APPLICATION
from tests.spark.crash.crashing_task import WAIT_S
from tests.spark.crash.driver import configuration

UNITS = 200
ROWS_PER_UNIT = 5
KEYS = 7
GO = "go"


class Outcome(NamedTuple):
    rows: Rows
    computed: int
    """Map tasks that this application computed."""
    reused: int
    """Map tasks whose output was there already."""


class CountedDriver:
    """An application of its own, whose files are below `life`."""

    def __init__(self, life: Path, master: str) -> None:
        life.mkdir(parents=True)
        conf = configuration(life) | (APPLICATION if master.startswith("spark") else {})
        self._spark = session(master=master, conf=conf, log=life / "spark.log")

    def run(self, folder: Path, waits_at: int) -> Outcome:
        """Run the query. From call `waits_at` on each call waits until it may go on."""
        with hr.open(folder / "workspace") as workspace:
            run = counted_query(workspace, folder, waits_at).run("counted", self._spark)
            report = run.reports[0]
            rows = run.table().sort_by("key").to_pylist()
        return Outcome(rows, report.computed, report.reused)


def counted_query(workspace: hr.Workspace, folder: Path, waits_at: int) -> hr.Query:
    function = partial(with_key, folder, waits_at)
    return (
        hr.scan(numbers(UNITS * ROWS_PER_UNIT), workspace, rows_per_unit=ROWS_PER_UNIT)
        .map(function, version="1")
        .group_by("key", partitions=4)
        .agg(n="count", total=("n", "sum"), units=("unit", "max"))
    )


def expected() -> Rows:
    values = [range(key, UNITS * ROWS_PER_UNIT, KEYS) for key in range(KEYS)]
    return [
        {"key": key, "n": len(each), "total": sum(each), "units": max(each) // ROWS_PER_UNIT}
        for key, each in enumerate(values)
    ]


def with_key(folder: Path, waits_at: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    unit = batch["n"][0].as_py() // ROWS_PER_UNIT
    with (folder / "calls").open("ab", buffering=0) as calls:
        os.write(calls.fileno(), b"%d\n" % unit)
    if len(units_called(folder)) >= waits_at:
        eventually((folder / GO).exists, WAIT_S, "the go")
    keys = pc.subtract(batch["n"], pc.multiply(pc.divide(batch["n"], KEYS), KEYS))
    units = pa.array([unit] * batch.num_rows, pa.int64())
    return batch.append_column("key", keys).append_column("unit", units)


def units_called(folder: Path) -> list[int]:
    """Return the unit of each call of the map function."""
    file = folder / "calls"
    return [int(line) for line in file.read_bytes().splitlines()] if file.exists() else []
