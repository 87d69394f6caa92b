"""Writers of `format("headrace")`: each write is one transaction that all its tasks join.

Readers see all of a write or nothing, and attempts that lost contribute nothing. A stream stores
the query and the number of a micro-batch with its documents, under the name of its publisher. So
the publisher recognizes a micro-batch that Spark runs again, and rolls it back.

Spark makes a writer in the process that plans a write. For a stream it makes a second one, from the
same options, in the process that commits. What the second must know travels with the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.spark.source.options import Writes
from headrace.spark.worker_process import check_version
from headrace.spark.write.commit_payload import QueryBatch
from headrace.spark.write.dataframe_transaction import take_part
from headrace.spark.write.transaction_process import BeginWrite, HeldWrite, begin
from headrace.version import VERSION


@dataclass(frozen=True)
class WrittenPart(WriterCommitMessage):
    """What a task returns to Spark."""

    prepared: str
    """Empty if the task had no rows."""
    write: HeldWrite
    query: str = ""


@dataclass(frozen=True)
class Planned:
    """A write that has begun, as Spark sends it to the tasks."""

    writes: Writes
    write: HeldWrite
    version: str = VERSION

    def take_part(self, batches: Iterator[pa.RecordBatch], query: str = "") -> WrittenPart:
        check_version(self.version)
        write = self.write
        prepared = take_part(write.workspace, write.invitation, self.writes.collection, batches)
        return WrittenPart(prepared, write, query)


def plan(writes: Writes, schema: StructType) -> Planned:
    rows = to_arrow_schema(schema, timezone="UTC").serialize().to_pybytes()
    asked = BeginWrite(writes.location, writes.collection, rows, publisher_name(writes))
    return Planned(writes, begin(asked))


def publisher_name(writes: Writes) -> str:
    """Return the name of a stream's publisher. No publisher of a task has such a name."""
    return f"stream/{writes.publisher}" if writes.publisher else ""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        return self.planned.take_part(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts, _ = _parts(messages)
        self.planned.write.commit(parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.planned.write.abort()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch."""

    def __init__(self, writes: Writes, planned: Planned | None) -> None:
        """`planned` is None in the process that commits."""
        self._writes = writes
        self.planned = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        assert self.planned
        task = TaskContext.get()
        assert task
        query = task.getLocalProperty("sql.streaming.queryId")
        assert query
        return self.planned.take_part(iterator, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if not messages or None in messages:
            # Continuous processing commits before its tasks have returned, and never aborts.
            self.abort(messages, batchId)
            raise UsageError(
                "format 'headrace' writes a stream in micro-batches",
                do="use another trigger than continuous",
            )
        parts, first = _parts(messages)
        first.write.commit(parts, QueryBatch(first.query, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Take the publisher over, which rolls back what its last holder wrote.

        Tasks that failed returned no part, so nobody here knows which process holds the write.
        """
        with self._writes.location.open() as workspace:
            workspace.publisher(publisher_name(self._writes)).close()


def _parts(messages: Sequence[WriterCommitMessage | None]) -> tuple[list[str], WrittenPart]:
    """Return what to include, and the first part."""
    parts = [each for each in messages if isinstance(each, WrittenPart)]
    # Spark runs at least one task, also without rows, and commits when all tasks have returned.
    assert len(parts) == len(messages) > 0
    return [each.prepared for each in parts if each.prepared], parts[0]
