"""Kills or stops the owner of the journals under a task on Spark, and times the recovery.

As in production, each is in processes of its own: the owner, the task with two members on Spark,
and a probe that publishes documents and checks when the task has applied them.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Literal

import pyarrow.compute as pc

import headrace
from headrace.bench.processes import child, owner
from headrace.bench.steps import step
from headrace.errors import HeadraceError
from headrace.settings import ServiceSettings
from headrace.spark import Progress, Task
from headrace.spark.sinks.collection_sink import CollectionSink
from headrace.spark.spark_session import temporary_session

SinkKind = Literal["collection", "parquet"]

_SHARDS = 2
_SCHEMA = "n long"
_STEADY = 5
"""The probe must see this many new documents before the owner is struck."""
_PAUSE_S = 0.05
_BEYOND_SILENCE_S = 4.0


def bench_takeover(
    directory: Path, strikes: int = 3, sink: SinkKind = "collection"
) -> dict[str, float]:
    """Strike the owner `strikes` times in each way, each time in a new workspace; return medians.

    `owner_killed_s` is the time from the kill until the task has applied a document published after
    it. `owner_stopped_s` is the same time, counted from the moment when the owner continues, after
    it was stopped for longer than the silence after which it counts as lost.
    """
    directory = directory.absolute()
    conf = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    with temporary_session(_SHARDS, conf=conf, log=directory / "spark.log") as spark:
        killed, stopped = (
            [
                _strike(spark, directory / f"{strike.__name__}-{n}", strike, sink)
                for n in range(strikes)
            ]
            for strike in (_kill, _stop)
        )
    return {
        "owner_killed_s": median(each for each, _ in killed),
        "owner_killed_s_max": max(each for each, _ in killed),
        "owner_killed_restarts": sum(restarts for _, restarts in killed),
        "owner_stopped_s": median(each for each, _ in stopped),
        "owner_stopped_s_max": max(each for each, _ in stopped),
        "owner_stopped_restarts": sum(restarts for _, restarts in stopped),
        "strikes": strikes,
    }


def _kill(owner: int) -> float:
    """Kill the owner, and return the time at which it died."""
    os.kill(owner, signal.SIGKILL)
    return time.time()


def _stop(owner: int) -> float:
    """Stop the owner for a while, and return when it continued."""
    os.kill(owner, signal.SIGSTOP)
    time.sleep(ServiceSettings().silence_s + _BEYOND_SILENCE_S)
    os.kill(owner, signal.SIGCONT)
    return time.time()


def _strike(
    spark: Any, directory: Path, strike: Callable[[int], float], sink: SinkKind
) -> tuple[float, int]:
    """Return the seconds until the task continues, and how often it was restarted meanwhile."""
    step(f"the owner is struck: {directory.name.strip('_')}")
    directory.mkdir()
    location = directory / "workspace"
    with owner(location) as process, headrace.open(location) as workspace:
        workspace.collection("in", _SCHEMA, key="n", journals=2)
        workspace.collection("out", _SCHEMA, key="n", journals=2)
        files = directory / "files"
        task = headrace.materialization(
            workspace,
            sources=["in"],
            sink=CollectionSink("out") if sink == "collection" else headrace.parquet(files),
            name="copies",
            shards=_SHARDS,
        )(lambda cut: cut["in"])
        with _running(task, spark) as progress, _probe_process(location, files, sink) as applied:
            for _ in range(_STEADY):
                next(applied)
            since = strike(process)
            seconds = next(seen - since for published, seen in applied if published > since)
            restarts = progress[-1].restarts
    return seconds, restarts


@contextmanager
def _running(task: Task, spark: Any) -> Iterator[list[Progress]]:
    seen: list[Progress] = []
    thread = threading.Thread(target=task.run, args=(spark,), kwargs={"watch": seen.append})
    thread.start()
    try:
        yield seen
    finally:
        task.stop()
        thread.join()


@contextmanager
def _probe_process(
    location: Path, files: Path, sink: SinkKind
) -> Iterator[Iterator[tuple[float, float]]]:
    """Yield, for each new document that the task applied, when it was published and when seen."""
    with child("-m", "headrace.bench.bench_takeover", str(location), str(files), sink) as probe:
        assert probe.stdin
        assert probe.stdout
        lines = (line.split() for line in probe.stdout)
        yield ((float(published), float(seen)) for published, seen in lines)
        # Nobody reads its output any more, so it must not wait for that.
        probe.kill()


def _probe(location: str, files: str, sink: str) -> None:
    """Print, for each new document that the task applied, when it was published and when seen."""
    published: dict[int, float] = {}
    seen = -1
    with headrace.open(location) as workspace:

        def newest() -> int:
            out = (
                workspace.table("out") if sink == "collection" else headrace.parquet(files).table()
            )
            return pc.max(out["n"]).as_py() if out.num_rows else -1

        for n in itertools.count():
            published[n] = time.time()
            # Without an owner it keeps trying; a document published twice does no harm here.
            with suppress(HeadraceError):
                workspace.append("in", [{"n": n}])
            with suppress(HeadraceError):
                if (found := newest()) > seen:
                    seen = found
                    print(published[seen], time.time(), flush=True)
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    _probe(*sys.argv[1:])
