"""The Spark session of a command, which ends with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def spark_for(
    shards: int, *, master: str = "", conf: Mapping[str, str] | None = None, log: str | Path = ""
) -> Iterator[Any]:
    """A SparkSession, and no process of it afterwards."""
    from headrace.spark import session
    from headrace.spark.spark_session import end

    spark = session(shards, master=master, conf=conf, log=log)
    try:
        yield spark
    finally:
        end(spark)
