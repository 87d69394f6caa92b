"""The Spark session of a command, which ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_AGAIN_S = 0.5


@contextmanager
def spark_for(
    shards: int, *, master: str = "", conf: Mapping[str, str] | None = None, log: str | Path = ""
) -> Iterator[Any]:
    """A SparkSession, and no process of it afterwards."""
    from headrace.spark import session
    from headrace.spark.sessions import end

    spark = session(shards, master=master, conf=conf, log=log)
    try:
        yield spark
    finally:
        end(spark)


def aside(work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Do what works with Spark in a thread of its own, and wait for it.

    Ctrl-C inside of a call to Spark would break the connection to it. So it meets the thread that
    waits: the work is told to stop until it has ended. A second one gives it up.
    """
    failures: list[BaseException] = []
    ended = threading.Event()

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised by the thread that waits
            failures.append(error)
        ended.set()

    threading.Thread(target=do, name="spark", daemon=True).start()
    try:
        ended.wait()
    except KeyboardInterrupt:
        stop()
        # It may not have begun what is to be stopped.
        while not ended.wait(_AGAIN_S):
            stop()
        raise
    if failures:
        raise failures[0]
