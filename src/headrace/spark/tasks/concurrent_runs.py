"""Runs several tasks at the same time in one Spark application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from headrace.spark.tasks.progress import Progress
from headrace.spark.tasks.task_definition import Task


def run_beside(
    spark: SparkSession,
    tasks: Sequence[Task],
    restarts: int,
    reporter: Callable[[str], Callable[[Progress], None]],
) -> None:
    """Run tasks until all have ended. If one fails, or on an interruption, stop the others."""
    failures: list[BaseException] = []
    running = set(tasks)
    changed = threading.Condition()

    def run_one(task: Task) -> None:
        try:
            task.run(spark, restarts=restarts, watch=reporter(task.name))
        except BaseException as error:  # noqa: BLE001  raised by the thread that waits
            failures.append(error)
        with changed:
            running.remove(task)
            changed.notify_all()

    threads = [
        threading.Thread(target=run_one, args=(each,), name=each.name, daemon=True)
        for each in tasks
    ]
    for thread in threads:
        thread.start()
    try:
        # An interrupted `join` would take the thread for ended.
        with changed:
            changed.wait_for(lambda: failures or not running)
    finally:
        for each in tasks:
            each.stop()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
