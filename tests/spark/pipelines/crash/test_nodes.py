"""A paid pipeline on three nodes: one is lost, one is cut off, and the driver moves to another.

A node is a worker of a standalone cluster with all that runs on it; it takes the others for other
machines. The driver has a node of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.crash import Child, eventually
from headrace.testing.paid_server import PaidServer
from tests.spark.cluster import Cluster, machine
from tests.spark.crash.crashing_task import WAIT_S
from tests.spark.crash.process_tree import descendants, is_gone, is_stopped, processes_that_call
from tests.spark.pipelines.crash.paid_job import (
    COMMITTED,
    STOP,
    STOPPED,
    expected,
    ledger_totals,
    node_pipeline,
)

NODES, CORES = 3, 2
ROWS = 80
WORKERS = (1, 1, 2)
"""Of the three stages. Two nodes have slots for all of them."""
NO_ROWS = pa.table({"id": pa.array([], pa.int64())})
"""The source of a pipeline that is not run: its results are looked at."""
DRIVER = """
import os
os.environ["TEST_MACHINE"] = machine
import tests.spark.other_machine.sitecustomize
from tests.spark.pipelines.crash.paid_job import PaidDriver
driver = PaidDriver(life, master)
"""


class Driver:
    """A driver on a node, with its JVM."""

    def __init__(self, life: Path, master: str, node: str) -> None:
        self.child = Child(DRIVER, life=life, master=master, machine=node)

    def start(self, job: PaidJob) -> None:
        given = {"folder": job.folder, "url": job.server.url, "rows": ROWS, "workers": WORKERS}
        self.child.start("driver.run_on_nodes(folder, url, rows, workers)", **given)

    def finish(self) -> dict[str, int]:
        """Return how many workers of each stage were lost."""
        deaths: dict[str, int] = self.child.answer(WAIT_S)
        return deaths

    def kill(self) -> None:
        """End it and all that it started, as the loss of its machine does."""
        below = [self.child.pid, *descendants(self.child.pid)]
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for process in below:
                with suppress(ProcessLookupError):
                    os.kill(process, sent)
        self.child.kill()
        for process in below:
            eventually(partial(is_gone, process), WAIT_S, f"the end of process {process}")


class PaidJob(NamedTuple):
    folder: Path
    server: PaidServer

    def paid(self) -> int:
        return self.server.paid().total()

    def check(self) -> set[str]:
        """Check that no row is lost or there twice, or paid twice. Return where they were."""
        with hr.open(self.folder / "workspace") as workspace:
            pipeline = node_pipeline(workspace, NO_ROWS, self.server.url, self.folder, WORKERS)
            rows = pipeline.collect()
            totals = ledger_totals(workspace)
        found = sorted(zip(rows["id"].to_pylist(), rows["answer"].to_pylist(), strict=True))
        assert found == expected(ROWS)
        assert self.server.paid() == {f"row-{n}": 1 for n in range(ROWS)}
        assert totals.results == ROWS
        return set(rows["machine"].to_pylist())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), NODES, CORES) as started:
        yield started


@pytest.fixture(scope="module")
def drivers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Driver]]:
    """The newest driver is the last. Tests share it, because an application takes long to start."""
    first = Driver(tmp_path_factory.mktemp("life") / "1", cluster.master, "machine-driver")
    drivers = [first]
    yield drivers
    drivers[-1].kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PaidJob]:
    with PaidServer(tmp_path / "bill.ndjson", "--honour-keys", "--delay-ms", "100") as server:
        yield PaidJob(tmp_path, server)


# proves G15
def test_cross_node_fetch(job: PaidJob, drivers: list[Driver]) -> None:
    """Workers on other nodes fetch from the master's: topics on memory are in its process alone."""
    drivers[-1].start(job)
    assert not any(drivers[-1].finish().values())
    assert job.check() <= {machine(number) for number in range(NODES)}


# proves G15
def test_network_partition(job: PaidJob, drivers: list[Driver]) -> None:
    """A worker stands still before its commit until another has done its work. Then it goes on.

    Its conversation with the master is its lease, and was given up: its commit is refused.
    """
    (job.folder / STOP).touch()
    drivers[-1].start(job)
    process = eventually(partial(stopped_process, job), WAIT_S, "a worker that stops")
    with ExitStack() as stack:
        stack.callback(os.kill, process, signal.SIGCONT)
        eventually(partial(is_stopped, process), WAIT_S, "a worker that stands still")
        eventually(partial(is_everything_there, job), WAIT_S, "what another worker does instead")
    deaths = drivers[-1].finish()
    assert deaths["note"] >= 1
    committed = job.folder / COMMITTED
    assert not committed.exists() or committed.read_text() == "False"
    job.check()


def stopped_process(job: PaidJob) -> int:
    stopped = job.folder / STOPPED
    return int(stopped.read_text() or 0) if stopped.exists() else 0


def is_everything_there(job: PaidJob) -> bool:
    with hr.open(job.folder / "workspace") as workspace:
        pipeline = node_pipeline(workspace, NO_ROWS, job.server.url, job.folder, WORKERS)
        rows: int = pipeline.collect().num_rows
    return rows == len(expected(ROWS))


# proves G15, G17
def test_node_failure(job: PaidJob, drivers: list[Driver], cluster: Cluster) -> None:
    """The node is lost on which a worker pays for calls."""
    drivers[-1].start(job)
    eventually(lambda: job.paid() > ROWS // 4, WAIT_S, "some calls")
    (lost,) = eventually(partial(paying_nodes, job, cluster), WAIT_S, "a node with a worker")
    cluster.kill_worker(lost)
    with ExitStack() as stack:
        stack.callback(cluster.replace_worker, lost)
        deaths = drivers[-1].finish()
    assert deaths["ask"] >= 1
    job.check()


def paying_nodes(job: PaidJob, cluster: Cluster) -> list[int]:
    """Return the nodes of the processes that are connected to the server."""
    callers = set(processes_that_call(int(job.server.url.rpartition(":")[2])))
    below = [descendants(worker.pid).keys() for worker in cluster.workers]
    return [number for number, processes in enumerate(below) if callers & processes]


# proves G15, G17
def test_master_failover(
    job: PaidJob, drivers: list[Driver], cluster: Cluster, tmp_path: Path
) -> None:
    """The node of the driver is lost. A driver on another node goes on with the same storage."""
    drivers[-1].start(job)
    eventually(lambda: job.paid() > ROWS // 4, WAIT_S, "some calls")
    drivers[-1].kill()
    assert job.paid() < ROWS
    drivers.append(Driver(tmp_path / "life", cluster.master, machine(1)))
    drivers[-1].start(job)
    drivers[-1].finish()
    job.check()
