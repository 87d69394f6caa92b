"""The same task on a real cluster, whose workers are machines of their own to what runs there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.testing.crash import chosen_seed, eventually
from headrace.version import VERSION
from tests.spark.cluster import WORKERS, Cluster
from tests.spark.crash.company import WAIT_S, Company
from tests.spark.crash.processes import directory, process_at


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as started:
        yield started


# proves G14
def test_a_task_on_a_cluster_goes_on_without_its_executors(
    tmp_path: Path, cluster: Cluster
) -> None:
    """One executor is killed, then all of them at once."""
    with (
        Company(tmp_path, chosen_seed(default=1), master=cluster.master) as company,
        company.driver(shards=2) as run,
    ):
        company.goes_on(1)
        hosts = {each: cluster.worker_of(directory(process_at(each))) for each in run.members}
        assert sorted(hosts.values()) == [0, 1], "a member on each worker"

        def ways(*, is_elsewhere: bool) -> set[str]:
            workers = ((each, cluster.worker_of(each.directory)) for each in run.reads)
            return {
                each.way
                for each, worker in workers
                if (worker != hosts[each.address]) == is_elsewhere
            }

        eventually(partial(ways, is_elsewhere=True), WAIT_S, "a read of the other worker's Queue")
        assert ways(is_elsewhere=True) == {"flight"}
        assert ways(is_elsewhere=False) <= {"files"}
        for count in (1, WORKERS):
            for process in cluster.executors()[:count]:
                os.kill(process, signal.SIGKILL)
            company.goes_on(2)
        company.finish(run)
        packages = run.child.run("driver.packages()", WAIT_S)
    assert all(f"headrace-{VERSION}.zip" in each for each in packages), packages
