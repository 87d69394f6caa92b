"""Starts a transaction process, and a process that stands for Spark's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.spark.write.transaction_process import TransactionProcess

END_S = 90.0


class ProcessesOfWrites(NamedTuple):
    transactions: TransactionProcess
    spark: subprocess.Popen[bytes]
    """Stands for Spark's process: it lives until it is killed."""


@contextmanager
def start_processes() -> Iterator[ProcessesOfWrites]:
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as spark:
        transactions = TransactionProcess(spark.pid)
        yield ProcessesOfWrites(transactions, spark)
        transactions.close()
        spark.kill()
        transactions.process.wait(END_S)
