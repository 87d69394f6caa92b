"""Ends or stops a process of a query at one step of the commit protocol, uncleanly.

The steps are found by wrapping what is called there, in the driver and in the source's process,
which is started with a data source that wraps.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from unittest import mock

from pyspark.sql.types import StructType

from headrace.journal.publisher import Transaction
from headrace.shuffle import History
from headrace.spark.sinks import collection_sink
from headrace.spark.sinks.jdbc import JdbcTarget
from headrace.spark.sinks.parquet import ParquetTarget
from headrace.spark.sinks.store_sink import StoreTarget
from headrace.spark.source import datasource
from headrace.spark.source.datasource import HeadraceSource, StreamReader
from headrace.spark.source.options import parse_stream
from headrace.spark.tasks.task_definition import Task
from tests.spark.crash.outputs import Kind
from tests.spark.crash.read_recorder import RecordingReader

DEATH, IDS, NOTES = "TEST_DEATH", "TEST_IDS", "TEST_NOTES"
"""Variables of the environment, which Spark hands on to the driver's processes."""

Step = Literal[
    "store",  # the checkpoint, put if absent
    "release",  # what is before a checkpoint
    "clear",  # of what is released: a full checkpoint is stored, and what it replaces is deleted
    "function",  # the batch begins: it is in Spark's offset log
    "stage",  # the rows are written, and nobody sees them
    "commit",  # of the sink
]
STEPS: tuple[Step, ...] = get_args(Step)
Side = Literal["before", "after"]
SIDES: tuple[Side, ...] = get_args(Side)
Target = Literal["self", "all"]
"""The process at that step, or the driver and its JVM with it."""

_IN_SOURCE: dict[Step, str] = {
    "store": "append",
    "release": "release",
    "clear": "_delete_outdated",
}
_FULL_EVERY = 2
"""Checkpoints, so that those before are deleted all the time."""
_IN_SINK: dict[tuple[Kind, Step], tuple[Any, str]] = {
    ("collection", "stage"): (collection_sink, "publish"),
    ("collection", "commit"): (Transaction, "commit"),
    ("parquet", "stage"): (ParquetTarget, "stage"),
    ("parquet", "commit"): (ParquetTarget, "commit"),
    ("jdbc", "stage"): (JdbcTarget, "stage"),
    ("jdbc", "commit"): (JdbcTarget, "commit"),
    ("timeseries", "stage"): (StoreTarget, "stage"),
    ("timeseries", "commit"): (StoreTarget, "commit"),
    ("vectors", "stage"): (StoreTarget, "stage"),
    ("vectors", "commit"): (StoreTarget, "commit"),
}


class Death(NamedTuple):
    step: Step
    side: Side
    times: int = 1
    """It passes this step so often, and dies."""
    target: Target = "all"
    signal: signal.Signals = signal.SIGKILL
    """Stopped is the process at the step alone: others are by whoever sees it."""

    def write(self) -> str:
        return ",".join(map(str, self))


def read_death(text: str) -> Death:
    step, side, times, target, number = text.split(",")
    return Death(step, side, int(times), target, signal.Signals(int(number)))  # type: ignore[arg-type]


class Killing(NamedTuple):
    """Ends the processes whose ids are in a file, and with them the one at the step."""

    ids: Path
    target: Target = "all"
    signal: signal.Signals = signal.SIGKILL

    def now(self) -> None:
        if self.signal == signal.SIGKILL and self.target == "all":
            for process in self.ids.read_text().split():
                os.kill(int(process), signal.SIGKILL)
        self.ids.with_name("reached").write_text(str(os.getpid()))
        os.kill(os.getpid(), self.signal)


def deadly(death: Death, real: Callable[..., Any], killing: Killing) -> Callable[..., Any]:
    passes = 0

    def do(*args: Any, **named: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == death.times and death.side == "before":
            killing.now()
        value = real(*args, **named)
        if passes == death.times and death.side == "after":
            killing.now()
        return value

    return do


@contextmanager
def deadly_driver(task: Task, kind: Kind) -> Iterator[None]:
    """The driver's steps end in death, if one of them is to."""
    death, killing = given()
    if death and death.step == "function":
        task.function = deadly(death, task.function, killing)
    if death and (kind, death.step) in _IN_SINK:
        owner, name = _IN_SINK[kind, death.step]
        does = deadly(death, getattr(owner, name), killing)
        with mock.patch.object(owner, name, lambda *args: does(*args)):
            yield
    else:
        yield


def given() -> tuple[Death | None, Killing]:
    """What the environment says."""
    ids = Path(os.environ[IDS])
    if not (text := os.environ.get(DEATH)):
        return None, Killing(ids)
    death = read_death(text)
    return death, Killing(ids, death.target, death.signal)


class DeadlySource(HeadraceSource):
    """Known as `headrace`, where this one is registered."""

    def streamReader(self, schema: StructType) -> StreamReader:
        mock.patch.object(datasource, "History", partial(History, full_every=_FULL_EVERY)).start()
        death, killing = given()
        if death and death.step in _IN_SOURCE:
            name = _IN_SOURCE[death.step]
            real = deadly(death, getattr(History, name), killing)
            setattr(History, name, lambda *args: real(*args))
        if notes := os.environ.get(NOTES):
            return RecordingReader(parse_stream(self.options), schema, notes)
        return super().streamReader(schema)
