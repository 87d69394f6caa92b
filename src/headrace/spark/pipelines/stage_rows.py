"""What a durable stage has produced: messages that refer to rows, and the rows as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.workspace import Workspace
from headrace.pipeline.master.inputs import InputTopic
from headrace.pipeline.messages import UNIT, QueueMessage, decode_message
from headrace.pipeline.run.job_run import run_async
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.source_units import decode_unit
from headrace.pipeline.source.unit_reader import read_unit
from headrace.plan.unified_columns import fit, unify_columns
from headrace.queues.local_backend import LocalBackend
from headrace.settings import ServiceSettings
from headrace.spark.query_failure import raised_as_ours
from headrace.spark.worker_process import for_executors

_FETCH = 1000


class Produced(NamedTuple):
    """The messages of a range of a topic."""

    ends: list[int]
    """The offset after the last message, by partition."""
    messages: list[QueueMessage]
    """Those that have rows."""
    rows: int


def fetch_produced(
    workspace: Workspace,
    topic: InputTopic,
    begins: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    rows_max: int | None = None,
) -> Produced:
    """Return the messages between two offsets of each partition; without `ends`, all that is there.

    Stops after the message with which there are `rows_max` rows.
    """
    return run_async(_fetch_produced(workspace, topic, begins, ends, rows_max))


async def _fetch_produced(
    workspace: Workspace,
    topic: InputTopic,
    begins: Sequence[int] | None,
    ends: Sequence[int] | None,
    rows_max: int | None,
) -> Produced:
    messages: list[QueueMessage] = []
    reached: list[int] = []
    rows = 0
    async with LocalBackend(workspace) as local:
        for partition in range(topic.partitions):
            begin = await local.begin_offset(topic.name, partition=partition)
            offset = begins[partition] if begins else begin
            end = ends[partition] if ends else None
            while rows_max is None or rows < rows_max:
                found = await local.fetch(topic.name, offset, _FETCH, partition=partition)
                records = [each for each in found if end is None or each.offset < end]
                for record in records:
                    message = decode_message(record.value)
                    messages += [message] if message.may_have_rows else []
                    rows += message.rows
                    offset = record.offset + 1
                    if rows_max is not None and rows >= rows_max:
                        break
                if not records or len(records) < len(found):
                    break
            reached.append(offset if end is None else end)
    return Produced(reached, messages, rows)


def read_rows(
    spark: SparkSession,
    workspace: Workspace,
    payloads: Payloads,
    messages: Sequence[QueueMessage],
) -> DataFrame:
    """Return the rows of messages that have some. There must be at least one."""
    reading = (_Reader(workspace.reach(), payloads), list(messages))
    slices = max(1, min(len(messages), spark.sparkContext.defaultParallelism))
    numbers = spark.range(0, len(messages), 1, slices)
    schemas = [payloads.schema(each.data_ref) for each in messages if each.data_ref]
    if len(schemas) < len(messages):
        # The columns of files and collections are known to those who read them.
        with raised_as_ours():
            found = numbers.mapInArrow(for_executors(_schemas, *reading), "columns binary")
            schemas += [pa.ipc.read_schema(pa.py_buffer(each[0])) for each in found.collect()]
    schema = from_arrow_schema(unify_columns(schemas))
    # What Spark makes of the columns: it has no large strings, for example.
    columns = to_arrow_schema(schema, timezone="UTC")
    return numbers.mapInArrow(for_executors(_read, *reading, columns), schema)


def no_rows(spark: SparkSession, columns: pa.Schema) -> DataFrame:
    return spark.createDataFrame([], from_arrow_schema(columns))


class _Reader(NamedTuple):
    """Reads messages, in an executor."""

    workspace: WorkspaceRef
    payloads: Payloads

    def tables(
        self, messages: Sequence[QueueMessage], numbers: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.Table]:
        """Yield the rows of each message whose number is given."""
        with ExitStack() as stack:
            opened: Workspace | None = None
            for number in (each for batch in numbers for each in batch.column(0).to_pylist()):
                message = messages[number]
                if message.data_ref:
                    yield self.payloads.get(message.data_ref)
                    continue
                if opened is None:
                    # It listens nowhere.
                    service = ServiceSettings(host="127.0.0.1", port=0)
                    opened = stack.enter_context(self.workspace.open(Workspace, service))
                unit = decode_unit(message.metadata[UNIT])
                yield read_unit(unit, self.payloads, opened)


def _schemas(
    reader: _Reader, messages: Sequence[QueueMessage], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    found = {table.schema.remove_metadata() for table in reader.tables(messages, numbers)}
    yield pa.record_batch({"columns": [each.serialize().to_pybytes() for each in found]})


def _read(
    reader: _Reader,
    messages: Sequence[QueueMessage],
    columns: pa.Schema,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for table in reader.tables(messages, numbers):
        yield from fit(table, columns).to_batches()
