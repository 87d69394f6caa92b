"""Frees the garbage of a job, or deletes the job, and dies before one of the steps.

python -m tests.pipeline.crash.killed_gc WORKSPACE gc|delete STEP
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.pipeline.status.garbage import collect_garbage, delete_job
from tests.pipeline.jobs import numbers

ROWS = 40
JOB = "numbers"


class AddOne(hr.Operator):
    """A paid call for each row."""

    version = "1"

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array([n + 1 for n in batch["n"].to_pylist()])})


class AddTwo(AddOne):
    version = "2"


def make(workspace: hr.Workspace, operator: type[hr.Operator], **options: Any) -> hr.Pipeline:
    """A pipeline with a light stage between two that are paid."""
    return (
        hr.pipeline(JOB, workspace, **options)
        .source(numbers(ROWS), rows_per_unit=10)
        .map_batches(operator, name="first", batch_size=5, expensive=True, cost=1)
        .filter(lambda table: pa.array([True] * table.num_rows), name="light", version="1")
        .map_batches(AddOne, name="second", batch_size=5, expensive=True, cost=1)
    )


def work(workspace: hr.Workspace, kind: str, die_before: int | None) -> int:
    """Carry out the steps, and return how many moments there were to die at."""
    moments = count()

    def before() -> None:
        if next(moments) == die_before:
            os.kill(os.getpid(), signal.SIGKILL)

    (collect_garbage if kind == "gc" else delete_job)(workspace, JOB, before)
    return next(moments)


if __name__ == "__main__":
    with hr.open(sys.argv[1]) as opened:
        work(opened, sys.argv[2], int(sys.argv[3]))
