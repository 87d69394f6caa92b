"""What a durable stage has produced: references to payloads, and their rows as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.errors import SchemaError
from headrace.journal.workspace import Workspace
from headrace.pipeline.job_run import run_async
from headrace.pipeline.master.inputs import InputTopic
from headrace.pipeline.messages import decode_message
from headrace.pipeline.payloads import Payloads
from headrace.queues.local_backend import LocalBackend
from headrace.spark.worker_process import for_executors

_FETCH = 1000


class Produced(NamedTuple):
    """The messages of a range of a topic."""

    ends: list[int]
    """The offset after the last message, by partition."""
    refs: list[str]
    rows: int


def fetch_refs(
    workspace: Workspace,
    topic: InputTopic,
    begins: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    rows_max: int | None = None,
) -> Produced:
    """Return the payloads between two offsets of each partition; without `ends`, all that is there.

    Stops after the message with which there are `rows_max` rows.
    """
    return run_async(_fetch_refs(workspace, topic, begins, ends, rows_max))


async def _fetch_refs(
    workspace: Workspace,
    topic: InputTopic,
    begins: Sequence[int] | None,
    ends: Sequence[int] | None,
    rows_max: int | None,
) -> Produced:
    refs: list[str] = []
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
                    refs += [message.data_ref] if message.data_ref else []
                    rows += message.rows
                    offset = record.offset + 1
                    if rows_max is not None and rows >= rows_max:
                        break
                if not records or len(records) < len(found):
                    break
            reached.append(offset if end is None else end)
    return Produced(reached, refs, rows)


def read_rows(spark: SparkSession, payloads: Payloads, refs: Sequence[str]) -> DataFrame:
    """Return the rows of payloads. There must be at least one."""
    columns = _columns([payloads.schema(ref) for ref in refs])
    schema = from_arrow_schema(columns)
    # What Spark makes of the columns: it has no large strings, for example.
    read = for_executors(_read, payloads, list(refs), to_arrow_schema(schema, timezone="UTC"))
    slices = max(1, min(len(refs), spark.sparkContext.defaultParallelism))
    return spark.range(0, len(refs), 1, slices).mapInArrow(read, schema)


def _columns(schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(
            list(dict.fromkeys(each.remove_metadata() for each in schemas)),
            promote_options="default",
        )
    except pa.ArrowException as error:
        raise SchemaError(
            f"units of the stage have different columns: {error}",
            do="declare the operator's schema, so that all of its units have the same",
        ) from error


def _read(
    payloads: Payloads,
    refs: Sequence[str],
    columns: pa.Schema,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from fit(payloads.get(refs[number]), columns).to_batches()


def fit(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns; nulls for those that it does not have."""
    arrays = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)
