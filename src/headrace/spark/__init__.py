"""The engine: journals and tasks on Spark. The only package that imports PySpark.

- `source`, `options`, `rows`, `frames`: data source `headrace`; a micro-batch is one checkpoint.
- `members`: Slices and Queues inside of a barrier stage, for as long as a query runs.
- `tasks`, `cut`, `sinks`: functions of a cut whose output is applied once.
- `sessions`: a Spark session with room for members.
- `registration`: the data source, made known to any other session.
"""

from __future__ import annotations

from headrace.spark.registration import register
from headrace.spark.sinks.contract import CheckpointId, Sink, Target
from headrace.spark.sinks.foreach_batch import foreach_batch
from headrace.spark.sinks.jdbc import jdbc
from headrace.spark.sinks.parquet import parquet
from headrace.spark.sinks.writer import writer
from headrace.spark.source.dataframes import read, stream
from headrace.spark.spark_session import session, ship
from headrace.spark.tasks.cut import Cut
from headrace.spark.tasks.progress import Progress
from headrace.spark.tasks.task_definition import Task, derivation, materialization

__all__ = [
    "CheckpointId",
    "Cut",
    "Progress",
    "Sink",
    "Target",
    "Task",
    "derivation",
    "foreach_batch",
    "jdbc",
    "materialization",
    "parquet",
    "read",
    "register",
    "session",
    "ship",
    "stream",
    "writer",
]


def __dir__() -> list[str]:
    return list(__all__)
