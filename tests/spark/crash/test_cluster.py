"""The same task on a real cluster, whose workers are machines of their own to what runs there."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import headrace
from headrace.exchange import MapTask, OutputRegistry, list_queries, verify
from headrace.exchange.format.layout import PUBLISHED
from headrace.storage import open_objects
from headrace.testing.crash import Child, chosen_seed, eventually
from headrace.version import VERSION
from tests.spark.cluster import CORES, WORKERS, Cluster
from tests.spark.crash.counted_query import GO, UNITS, expected, units_called
from tests.spark.crash.crashing_task import WAIT_S, CrashingTask
from tests.spark.crash.process_tree import descendants, directory, is_gone, process_at
from tests.spark.crash.speculation import PUBLISHED_FIRST, PUBLISHED_LAST, ROWS, TASKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


# proves G14
def test_a_task_on_a_cluster_goes_on_without_its_executors(
    tmp_path: Path, cluster: Cluster
) -> None:
    """One executor is killed, then all of them at once."""
    with (
        CrashingTask(tmp_path, chosen_seed(default=1), master=cluster.master) as crashing,
        crashing.driver(shards=2) as run,
    ):
        crashing.goes_on(1)
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
            crashing.goes_on(2)
        crashing.finish(run)
        packages = run.child.run("driver.packages()", WAIT_S)
    assert all(f"headrace-{VERSION}.zip" in each for each in packages), packages


# proves G14
@pytest.mark.deep
def test_a_speculative_attempt_adds_nothing(tmp_path: Path, cluster: Cluster) -> None:
    code = "from tests.spark.crash.speculation import publish_speculatively"
    with headrace.open(tmp_path / "workspace") as workspace, Child(code) as driver:
        workspace.collection("numbers", "number long", journals=2)
        given = {"folder": tmp_path, "master": cluster.master}
        driver.run("publish_speculatively(folder, master)", WAIT_S, **given)
        assert (tmp_path / "task-0-1").exists(), "Spark has speculated"
        assert sorted(workspace.table("numbers")["number"].to_pylist()) == list(range(ROWS))


# proves G19
@pytest.mark.deep
def test_spark_speculates_and_a_query_has_the_rows_of_one_attempt(
    tmp_path: Path, cluster: Cluster
) -> None:
    """The slow attempt has stored all of its files when another is published."""
    code = "from tests.spark.crash.speculation import query_speculatively"
    with Child(code) as driver:
        given = {"folder": tmp_path, "master": cluster.master, "patience_s": WAIT_S}
        rows = driver.run("query_speculatively(folder, master, patience_s)", WAIT_S, **given)
    assert rows == [{"n": n, "count": 1} for n in range(ROWS)]
    objects = open_objects(str(tmp_path / "objects"))
    (query,) = list_queries(objects)
    found = sorted((each.map_tasks, each.published, each.attempts) for each in query.stages)
    assert found == [(2, 2, 2), (TASKS, TASKS, TASKS)]
    assert (tmp_path / PUBLISHED_LAST).read_text() == "False", "the slow attempt was last"
    directory, _, name = (tmp_path / PUBLISHED_FIRST).read_text().rpartition(f"/{PUBLISHED}/")
    map_task, generation = name.split("-")
    _, query_id, stage_id = directory.split("/")
    task = MapTask(int(query_id), int(stage_id), int(map_task))
    assert generation == "1"
    assert objects.head(task.claim(2)), "Spark has run a second attempt"
    assert OutputRegistry(objects).lookup(task).attempt == 2
    assert verify(objects, query.query_id).damages == []


# proves G21
@pytest.mark.deep
def test_a_query_that_is_submitted_again_to_a_cluster_repeats_only_what_was_in_flight(
    tmp_path: Path, cluster: Cluster
) -> None:
    """The executors of the killed driver go on for a moment, beside those of the next one."""
    code = (
        "from tests.spark.crash.counted_query import CountedDriver\n"
        "driver = CountedDriver(life, master)"
    )
    slots, called_before = WORKERS * CORES, UNITS // 2
    with Child(code, life=tmp_path / "killed", master=cluster.master) as driver:
        waits_at = called_before - slots + 1
        driver.start("driver.run(folder, waits_at)", folder=tmp_path, waits_at=waits_at)
        eventually(lambda: len(units_called(tmp_path)) >= called_before, WAIT_S, "calls")
        left = descendants(driver.pid)
        driver.kill()
    (tmp_path / GO).touch()
    for process in left:
        eventually(partial(is_gone, process), WAIT_S, f"the end of process {process}")
    with Child(code, life=tmp_path / "again", master=cluster.master) as driver:
        outcome = driver.run("driver.run(folder, 0)", WAIT_S, folder=tmp_path)
        left = descendants(driver.pid)
    for process in left:
        eventually(partial(is_gone, process), WAIT_S, f"the end of process {process}")
    calls = Counter(units_called(tmp_path))
    assert sorted(calls) == list(range(UNITS))
    assert calls.total() - UNITS <= slots
    assert outcome.rows == expected()
