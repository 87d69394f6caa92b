"""Journals and tasks on Spark. No other package imports PySpark.

- `source/`: the data source `headrace`; a micro-batch is one checkpoint.
- `write/`: writes to collections; a write is one transaction.
- `pipelines/`: stages as concurrent Spark jobs, whose workers are tasks.
- `tasks/`: functions of a cut whose output is applied once, and their runs.
- `sinks/`: what tasks write to.
- `spark_members`: Slices and Queues in a barrier stage, for as long as a query runs.
- `spark_session`: a Spark session that has room for members.
- `slots`: the slots of a session, and who holds them.
- `registration`: makes the data source known to any other session.
- `worker_process`: what Headrace does in the Python processes that Spark starts.
- `query_failure`, `gateway_log`: what the user is told when a query fails.
"""

from __future__ import annotations

from headrace.spark.registration import register
from headrace.spark.sinks.contract import CheckpointId, Sink, Target
from headrace.spark.sinks.foreach_batch import foreach_batch
from headrace.spark.sinks.jdbc import jdbc
from headrace.spark.sinks.parquet import parquet
from headrace.spark.sinks.store_sink import timeseries, vectors
from headrace.spark.sinks.writer import writer
from headrace.spark.source.dataframes import read, stream
from headrace.spark.source.store_batch import read_timeseries, read_vectors
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
    "read_timeseries",
    "read_vectors",
    "register",
    "session",
    "ship",
    "stream",
    "timeseries",
    "vectors",
    "writer",
]


def __dir__() -> list[str]:
    return list(__all__)
