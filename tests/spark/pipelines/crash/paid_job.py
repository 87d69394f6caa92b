"""A job that pays for every row, and the driver that runs it, in a process that is killed.

source → `ask`: an HTTP service that is paid → `keep`: on memory → sink
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.pipeline.builder import Pipeline
from headrace.pipeline.job import Job
from headrace.pipeline.ledger.ledger_store import read_totals
from headrace.pipeline.ledger.totals import StageTotals
from headrace.pipeline.operators.retries import Retries
from headrace.pipeline.run.job_run import ledger_directory
from headrace.pipeline.run.record import Records
from headrace.pipeline.worker.claimed_work import ClaimedWork, WorkStep
from headrace.pipeline.worker.input_cursor import Work
from headrace.settings import ServiceSettings
from headrace.spark.pipelines import sink_feed
from headrace.spark.spark_session import session
from tests.spark.cluster import APPLICATION
from tests.spark.crash.driver import configuration

JOB = "paid"
SHARDS = 3
"""Slots beyond those of the machine's cores: one is free for the sink while the workers work."""
RUNNING, STOP, STOPPED, COMMITTED = "running", "stop", "stopped", "committed"
"""Files."""
_ROWS_DUE = 20
_TIMEOUT_S = 2.0
_IMPATIENT = ServiceSettings(heartbeat_s=0.5, silence_s=5.0)
_RETRIES = Retries(30, first_s=0.1, longest_s=1.0)
_ONE_IN = 10


def body(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"row-{row['id']}"}


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"answer": given["answer"]}


def keep(batch: pa.RecordBatch) -> pa.Array:
    """Leave out every tenth row."""
    ids = pc.cast(batch["id"], pa.int64())
    tens = pc.multiply(pc.divide(ids, _ONE_IN), _ONE_IN)
    return pc.not_equal(ids, tens)


def expected(rows: int) -> list[tuple[int, str]]:
    """Return what the sink must hold in the end."""
    return [(n, f"answer to row-{n}") for n in range(rows) if n % _ONE_IN]


def paid_pipeline(
    workspace: hr.Workspace, source: Any, url: str, workers: Sequence[int] = (2, 1)
) -> Pipeline:
    """Return the job without its sink; `workers` are those of its stages."""
    ask = hr.http(f"{url}/ask", json=body, parse=answer, cost=0.01, timeout_s=_TIMEOUT_S)
    return (
        hr.pipeline(JOB, workspace)
        .source(source, rows_per_unit=4)
        .http(ask, name="ask", workers=workers[0], concurrency=2, retries=_RETRIES)
        .filter(keep, name="keep", workers=workers[1])
    )


def node_pipeline(
    workspace: hr.Workspace, source: Any, url: str, folder: Path, workers: Sequence[int]
) -> Pipeline:
    """Return the job with a last stage that notes where it ran, and stops once if it is asked."""
    paid = paid_pipeline(workspace, source, url, workers)
    return paid.map_batches(NoteMachine(folder), name="note", workers=workers[2], durable=True)


def ledger_totals(workspace: hr.Workspace) -> StageTotals:
    """Return what the calls of `ask` came to, over all runs."""
    record = Records(workspace.objects, JOB).newest()
    assert record
    path = ledger_directory(workspace, Job(JOB))
    (totals,) = read_totals(path, record.generation).values()
    return totals


class NoteMachine(hr.Operator):
    """Adds the machine. The first worker that finds the file STOP stops before it commits."""

    version = "1"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def setup(self) -> None:
        commit, folder = ClaimedWork._commit, self._folder

        async def stop_and_commit(work: ClaimedWork, step: WorkStep, last: Work) -> bool:
            with suppress(FileNotFoundError):
                (folder / STOP).unlink()
                (folder / STOPPED).write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
                is_committed = await commit(work, step, last)
                (folder / COMMITTED).write_text(str(is_committed))
                return is_committed
            return await commit(work, step, last)

        mock.patch.object(ClaimedWork, "_commit", stop_and_commit).start()

    def process(self, batch: pa.RecordBatch) -> pa.Table:
        machines = [this_machine()] * batch.num_rows
        return pa.Table.from_batches([batch]).append_column("machine", [machines])


def this_machine() -> str:
    """Return what tells machines apart; on a cluster every node has its own."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class PaidDriver:
    """Has a session whose files are below `life`."""

    def __init__(self, life: Path, master: str = "") -> None:
        life.mkdir(parents=True)
        conf = configuration(life) | (APPLICATION if master else {})
        self._spark = session(SHARDS, master=master, conf=conf, log=life / "spark.log")
        self._life = life

    def run(self, folder: Path, url: str, rows: int) -> None:
        """Run the job to its end, into files."""
        with (
            hr.open(folder / "workspace") as workspace,
            mock.patch.object(sink_feed, "ROWS_DUE", _ROWS_DUE),
            mock.patch.object(sink_feed, "_LOOK_S", 0.1),
        ):
            source = self._spark.range(0, rows, 1, 3)
            pipeline = paid_pipeline(workspace, source, url).sink(hr.parquet(folder / "out"))
            (self._life / RUNNING).touch()
            pipeline.run(self._spark)

    def run_on_nodes(
        self, folder: Path, url: str, rows: int, workers: Sequence[int]
    ) -> dict[str, int]:
        """Run a job that notes where each row was; return how many workers each stage lost."""
        with hr.open(folder / "workspace") as workspace:
            source = self._spark.range(0, rows, 1, 3)
            pipeline = node_pipeline(workspace, source, url, folder, workers)
            summary = pipeline.run(self._spark, service=_IMPATIENT)
        assert summary.outcome == "done"
        return {name: stage.deaths for name, stage in summary.stages.items()}
