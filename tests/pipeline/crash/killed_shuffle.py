"""A job of paid calls, then a group, whose process dies when some map tasks are published.

python -m tests.pipeline.crash.killed_shuffle WORKSPACE OUTPUTS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.exchange import MapOutputWriter
from headrace.pipeline.run import message_scan
from tests.pipeline.orders import ROWS, orders

JOB = "shuffled"
UNITS = 10


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


if __name__ == "__main__":
    die_after(int(sys.argv[2]))
    with hr.open(sys.argv[1]) as opened:
        make(opened, workers=1).run()
