"""Several tasks beside each other in one Spark application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from headrace.spark.tasks import Progress, Task

_LOOK_S = 0.2


def run_beside(
    spark: SparkSession,
    tasks: Sequence[Task],
    restarts: int,
    reporter: Callable[[str], Callable[[Progress], None]],
) -> None:
    """Until all have ended: the first that fails, or an interruption, stops the others."""
    failures: list[BaseException] = []

    def run_one(task: Task) -> None:
        try:
            task.run(spark, restarts=restarts, watch=reporter(task.name))
        except BaseException as error:  # noqa: BLE001  raised by the thread that waits
            failures.append(error)

    threads = [
        threading.Thread(target=run_one, args=(each,), name=each.name, daemon=True)
        for each in tasks
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not failures:
            threads[0].join(_LOOK_S)
    finally:
        for each in tasks:
            each.stop()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
