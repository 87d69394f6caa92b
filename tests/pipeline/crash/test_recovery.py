"""Workers, the driver, and the owner of the journals are killed, at moments that are chosen."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Self

import pytest

import headrace as hr
from headrace.pipeline.dead_letters import DEAD
from headrace.queues.contract import Record
from headrace.queues.local_backend import LocalBackend
from headrace.testing.crash import Child, eventually
from headrace.testing.queue_conformance import fetch_all
from tests.pipeline.crash.noting_job import (
    noted,
    noting_pipeline,
    open_gate,
    times_noted,
)
from tests.pipeline.crash.process_runner import ProcessRunner
from tests.spark.crash.process_tree import descendants, is_gone

ROWS = 60
WAIT_S = 60.0
DRIVER = """
import headrace as hr
from tests.pipeline.crash.noting_job import noting_pipeline
from tests.pipeline.crash.process_runner import ProcessRunner
workspace = hr.open(folder / "workspace")
"""
RUN = "noting_pipeline(workspace, folder, rows).run(runner=ProcessRunner()).outcome"
OWNER = "import headrace as hr; workspace = hr.open(place)"

Topic = tuple[list[list[Record]], list[int | None]]
"""The messages of a topic and its least committed offsets, by partition."""


class Driver:
    """A process that runs the job, with its workers in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: set[int] = set()
        self._child = Child(DRIVER, folder=folder)
        self._child.start(RUN, rows=ROWS)

    def finish(self) -> None:
        assert self._child.answer(WAIT_S) == "done"

    def kill(self) -> None:
        """Kill it alone: its workers notice."""
        self._left |= descendants(self._child.pid).keys()
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        # A worker notices when its operator is through with a row.
        for stage in ("shape", "last"):
            open_gate(self._folder, stage)
        for process in self._left:
            eventually(partial(is_gone, process), WAIT_S, f"the end of process {process}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def all_times(times: int) -> Counter[int]:
    return Counter(dict.fromkeys(range(ROWS), times))


def check_results(folder: Path) -> None:
    with hr.open(folder / "workspace") as workspace:
        rows = noting_pipeline(workspace, folder, ROWS).collect()["n"].to_pylist()
    assert sorted(rows) == list(range(ROWS))


# proves G15, G17
def test_hybrid_pipeline(folder: Path) -> None:
    """Topics: durable, then memory, then durable. A worker is killed, and later the driver.

    The stage on memory repeats what it has not passed on to a commit. The expensive one repeats
    nothing.
    """
    with Driver(folder) as driver:
        begun = eventually(lambda: noted(folder, "shape"), WAIT_S, "a row of the memory stage")
        os.kill(begun[0].process, signal.SIGKILL)
        open_gate(folder, "shape")
        eventually(lambda: len(times_noted(folder, "shape")) == ROWS, WAIT_S, "all rows on memory")
        held = eventually(lambda: noted(folder, "last"), WAIT_S, "a row of the last stage")
        before = times_noted(folder, "shape")
        assert before[begun[0].row] == 2, "another worker has begun the row again"
        driver.kill()
        # It would commit what it holds, and the stage on memory would repeat the rest alone.
        os.kill(held[0].process, signal.SIGKILL)
    with Driver(folder) as driver:
        driver.finish()
    assert times_noted(folder, "pay") == all_times(1)
    assert times_noted(folder, "shape") - before == all_times(1), "memory died with the driver"
    check_results(folder)


# proves G15
def test_master_crash_recovery(folder: Path) -> None:
    """The driver is killed. Topics hold what they held, and the next driver goes on from there.

    A worker outlives its driver, and may commit the unit that it is at. That counts.
    """
    open_gate(folder, "shape")
    with Driver(folder) as driver:
        eventually(lambda: len(times_noted(folder, "shape")) == ROWS, WAIT_S, "rows of two stages")
        eventually(lambda: noted(folder, "last"), WAIT_S, "a row of the last stage")
        before = topics(folder)
        driver.kill()
        assert topics(folder) == before
    (paid,) = (name for name in before if "pay" in name and not name.endswith(DEAD))
    assert sum(map(len, before[paid][0])) == ROWS // 5
    with Driver(folder) as driver:
        driver.finish()
    assert times_noted(folder, "pay") == all_times(1)
    assert topics(folder)[paid][0] == before[paid][0]
    check_results(folder)


def topics(folder: Path) -> dict[str, Topic]:
    """Return what all durable topics hold."""

    async def look(workspace: hr.Workspace) -> dict[str, Topic]:
        async with LocalBackend(workspace) as backend:
            return {
                topic: (
                    [await fetch_all(backend, topic, 100, n) for n in range(partitions)],
                    [
                        await backend.get_min_committed_offset(topic, partition=n)
                        for n in range(partitions)
                    ],
                )
                for topic, partitions in (await backend.topics()).items()
            }

    with hr.open(folder / "workspace") as workspace:
        return asyncio.run(look(workspace))


# proves G15, G17
def test_workers_go_on_when_the_owner_of_the_journals_is_killed(folder: Path) -> None:
    """What the design asks of a broker: `test_tansu_restart_during_processing`."""
    open_gate(folder, "shape")
    open_gate(folder, "last")
    with Child(OWNER, place=folder / "workspace") as owner:
        owner.run("workspace.journals()")

        def kill() -> None:
            eventually(lambda: len(noted(folder, "last")) > ROWS // 4, WAIT_S, "some rows")
            owner.kill()

        killing = threading.Thread(target=kill)
        with hr.open(folder / "workspace") as workspace:
            assert workspace.address is None, "another process owns it"
            killing.start()
            pipeline = noting_pipeline(workspace, folder, ROWS)
            assert pipeline.run(runner=ProcessRunner()).outcome == "done"
            killing.join()
            assert not owner.is_alive
            assert sorted(pipeline.collect()["n"].to_pylist()) == list(range(ROWS))
    assert times_noted(folder, "pay") == all_times(1)
