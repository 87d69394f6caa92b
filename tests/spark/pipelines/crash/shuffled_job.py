"""A paid job with a shuffle on Spark, whose map tasks note what they read, and wait for a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pyarrow as pa

import headrace as hr
from headrace.pipeline.run import job_run
from headrace.pipeline.run.payloads import Payloads
from headrace.spark.spark_session import session
from headrace.testing.crash import eventually
from tests.pipeline.crash.killed_shuffle import make
from tests.pipeline.orders import in_order
from tests.plan.plan_rows import Rows
from tests.spark.crash.crashing_task import WAIT_S
from tests.spark.crash.driver import configuration

GO = "go"


class Outcome(NamedTuple):
    rows: Rows
    cost: float
    tasks: int
    reused: int
    """Tasks of the shuffle whose output was there already."""


class SlowPayloads(Payloads):
    """From read `waits_at` on, each read of what is paid waits until it may go on."""

    def __init__(self, payloads: Payloads, folder: Path, waits_at: int) -> None:
        super().__init__(payloads._objects, payloads._prefix, payloads._scratch)
        self._folder = folder
        self._waits_at = waits_at

    def get(self, ref: str) -> pa.Table:
        if "/payloads/pay" in ref:
            with (self._folder / "reads").open("ab", buffering=0) as reads:
                os.write(reads.fileno(), f"{ref}\n".encode())
            if len(reads_in(self._folder)) >= self._waits_at:
                eventually((self._folder / GO).exists, WAIT_S, "the go")
        return super().get(ref)


def reads_in(folder: Path) -> list[str]:
    """Return the payloads that map tasks have read, in their order."""
    file = folder / "reads"
    return file.read_text().splitlines() if file.exists() else []


class ShuffledDriver:
    """An application of its own, whose files are below `life`."""

    def __init__(self, life: Path, master: str) -> None:
        life.mkdir(parents=True)
        self._spark = session(master=master, conf=configuration(life), log=life / "spark.log")

    def run(self, folder: Path, waits_at: int, workers: int) -> Outcome:
        job_payloads = job_run.job_payloads

        def slow_payloads(*given: object) -> Payloads:
            return SlowPayloads(job_payloads(*given), folder, waits_at)  # type: ignore[arg-type]

        with (
            hr.open(folder / "workspace") as workspace,
            mock.patch.object(job_run, "job_payloads", slow_payloads),
        ):
            pipeline = make(workspace, workers)
            summary = pipeline.run(self._spark)
            progress = pipeline.status().progress["group-by"]
            rows = in_order(pipeline.collect().to_pylist())
        return Outcome(rows, summary.cost, progress.tasks, progress.tasks_reused)
