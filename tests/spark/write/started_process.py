"""A coordinator of writes beside a process that stands for Spark's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.spark.write.transaction_process import TransactionProcess

END_S = 20.0


class CoordinatorAndSpark(NamedTuple):
    coordinator: TransactionProcess
    spark: subprocess.Popen[bytes]
    """Stands for Spark's process: it lives until it is killed."""


@contextmanager
def coordinator_and_spark() -> Iterator[CoordinatorAndSpark]:
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as spark:
        coordinator = TransactionProcess(spark.pid)
        yield CoordinatorAndSpark(coordinator, spark)
        coordinator.close()
        spark.kill()
        coordinator.process.wait(END_S)
