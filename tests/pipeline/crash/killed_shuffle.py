"""A job of paid calls, then a group, whose process dies when some tasks of the group are published,
or while it seals what they made.

python -m tests.pipeline.crash.killed_shuffle WORKSPACE OUTPUTS_OR_POINT
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import headrace as hr
from headrace.exchange import MapOutputWriter
from headrace.pipeline.run import message_scan
from headrace.pipeline.run.sealed_results import SealedResults
from headrace.pipeline.run.whole_stage import WholeStage
from headrace.storage.local_objects import LocalObjects
from tests.pipeline.orders import ROWS, orders

JOB = "shuffled"
UNITS = 10
SEALING = (
    *("the result is stored", "its units are listed"),
    *("it is sealed", "its topic is filled", "that is noted"),
)
"""What is the case when the process dies, in this order."""


class Pay:
    """Passes rows on, and notes each in a file that outlives every process."""

    version = "1"

    def __init__(self, bill: Path) -> None:
        self._bill = bill

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        # One write of a short line at the end of the file: a kill leaves all of it or none.
        with self._bill.open("ab", buffering=0) as bill:
            bill.write(b"%d\n" % row["n"])
        return row


def make(workspace: hr.Workspace, workers: int) -> hr.Pipeline:
    message_scan.TASK_ROWS = ROWS // UNITS
    pay = Pay(bill_of(workspace))
    return (
        hr.pipeline(JOB, workspace)
        .source(orders(), rows_per_unit=ROWS // UNITS)
        .map(pay, name="pay", expensive=True, cost=1, workers=workers)
        .group_by("lang", partitions=3)
        .agg(n="count", total=("cents", "sum"))
    )


def bill_of(workspace: hr.Workspace) -> Path:
    assert workspace.directory is not None
    return workspace.directory / "bill"


def die_after(outputs: int) -> None:
    """Let this process die instead of publishing one output more."""
    publish, published, lock = MapOutputWriter.publish, count(), threading.Lock()

    def publish_or_die(self: MapOutputWriter) -> Any:
        with lock:
            if next(published) == outputs:
                os.kill(os.getpid(), signal.SIGKILL)
            return publish(self)

    MapOutputWriter.publish = publish_or_die  # type: ignore[method-assign]


def die_when(point: str) -> None:
    """Let this process die as soon as this point of `SEALING` is reached."""

    def die(*_: Any) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    put_if_absent = LocalObjects.put_if_absent

    def die_before_the_seal(self: LocalObjects, key: str, data: Any) -> bool:
        return die() if key.endswith("/seal") else put_if_absent(self, key, data)

    mark_filled = SealedResults._mark_filled

    def die_with_the_mark(self: SealedResults, stage: str) -> None:
        mark_filled(self, stage)
        die()

    patched: dict[str, tuple[type, str, Any]] = {
        "the result is stored": (WholeStage, "seal", die),
        "its units are listed": (LocalObjects, "put_if_absent", die_before_the_seal),
        "it is sealed": (SealedResults, "fill", die),
        "its topic is filled": (SealedResults, "_mark_filled", die),
        "that is noted": (SealedResults, "_mark_filled", die_with_the_mark),
    }
    owner, name, replacement = patched[point]
    setattr(owner, name, replacement)


if __name__ == "__main__":
    if sys.argv[2] in SEALING:
        die_when(sys.argv[2])
    else:
        die_after(int(sys.argv[2]))
    with hr.open(sys.argv[1]) as opened:
        make(opened, workers=1).run()
