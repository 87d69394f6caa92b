"""Ends a process of a query at one step of the commit protocol, uncleanly.

The steps are found by wrapping what is called there, in the driver and in the source's process,
which is started with a data source that wraps.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from unittest import mock

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.journal.publisher import Transaction
from headrace.shuffle import History
from headrace.spark.source import HeadraceSource
from headrace.spark.tasks import Task

DEATH, IDS = "HEADRACE_DEATH", "HEADRACE_IDS"

Step = Literal[
    "store",  # the checkpoint, put if absent
    "release",  # what is before a checkpoint
    "function",  # the batch begins: it is in Spark's offset log
    "commit",  # of the sink
]
STEPS: tuple[Step, ...] = get_args(Step)
Side = Literal["before", "after"]
SIDES: tuple[Side, ...] = get_args(Side)
Target = Literal["self", "all"]
"""The process at that step, or the driver and its JVM with it."""


class Death(NamedTuple):
    step: Step
    side: Side
    times: int = 1
    """It passes this step so often, and dies."""
    target: Target = "all"

    def write(self) -> str:
        return ",".join(map(str, self))


def read_death(text: str) -> Death:
    step, side, times, target = text.split(",")
    return Death(step, side, int(times), target)  # type: ignore[arg-type]


class Killing(NamedTuple):
    """Ends the processes whose ids are in a file, and with them the one at the step."""

    ids: Path
    target: Target = "all"

    def now(self) -> None:
        if self.target == "all":
            for process in self.ids.read_text().split():
                os.kill(int(process), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


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
def deadly_driver(task: Task) -> Iterator[None]:
    """The driver's steps end in death, if one of them is to."""
    death, killing = given()
    if death and death.step == "function":
        task.function = deadly(death, task.function, killing)
    if death and death.step == "commit":
        commit = deadly(death, Transaction.commit, killing)
        with mock.patch.object(Transaction, "commit", lambda *args: commit(*args)):
            yield
    else:
        yield


def given() -> tuple[Death | None, Killing]:
    """What the environment says, which Spark hands on to its processes."""
    death = read_death(text) if (text := os.environ.get(DEATH)) else None
    return death, Killing(Path(os.environ[IDS]), death.target if death else "all")


class DeadlySource(HeadraceSource):
    """Known as `headrace`, where this one is registered."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        death, killing = given()
        if death and death.step in ("store", "release"):
            name = "append" if death.step == "store" else "release"
            real = deadly(death, getattr(History, name), killing)
            setattr(History, name, lambda *args: real(*args))
        return super().streamReader(schema)
