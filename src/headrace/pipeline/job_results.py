"""What a durable stage has produced, as a table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.errors import NotFoundError, SchemaError, UsageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.job import Job
from headrace.pipeline.job_run import job_payloads, job_topics, run_async
from headrace.pipeline.messages import decode_message
from headrace.pipeline.record import Records
from headrace.queues.local_backend import LocalBackend

_FETCH = 1000
_DECLARE = "declare the operator's schema, so that all of its units have the same"


def read_results(workspace: Workspace, job: Job, stage: str) -> pa.Table:
    """Return the rows that a durable stage has produced so far, partition after partition.

    Units may have different columns: see `unify_columns`.
    """
    record = Records(workspace.objects, job.id).newest()
    if record is None or not record.partitions or stage not in record.stages:
        raise NotFoundError(f"job {job.id!r} has no results of stage {stage!r}", do="run it")
    topic = job_topics(job, record)[stage]
    if not topic.is_durable:
        raise UsageError(f"stage {stage!r} is on memory", do="ask for a durable stage")
    payloads = job_payloads(workspace, record)
    refs = run_async(_refs(workspace, topic.name, topic.partitions))
    tables = [payloads.get(ref) for ref in refs]
    if not tables:
        return pa.table({})
    columns = unify_columns(table.schema for table in tables)
    return pa.concat_tables([fit(table, columns) for table in tables])


async def _refs(workspace: Workspace, topic: str, partitions: int) -> list[str]:
    refs: list[str] = []
    async with LocalBackend(workspace) as local:
        for partition in range(partitions):
            offset = await local.begin_offset(topic, partition=partition)
            while records := await local.fetch(topic, offset, _FETCH, partition=partition):
                messages = [decode_message(record.value) for record in records]
                refs += [message.data_ref for message in messages if message.data_ref]
                offset = records[-1].offset + 1
    return refs


def unify_columns(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of all units of a stage, in the order in which they first appear.

    An operator that declares no schema may return integers for one unit, floats or nothing but
    nulls for another. The common type holds all of their values: see `fit`. Raises SchemaError if
    there is none, as for numbers and text.
    """
    distinct = list(dict.fromkeys(schema.remove_metadata() for schema in schemas))
    try:
        return pa.unify_schemas(distinct, promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaError(
            f"units of the stage have different columns: {error}", do=_DECLARE
        ) from error


def fit(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns; nulls for those that it does not have.

    Raises SchemaError if a value would change, such as an integer that no float is equal to.
    """
    return pa.Table.from_arrays([_fit(table, field) for field in columns], schema=columns)


def _fit(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    try:
        return table[field.name].cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {field.name!r} of a unit does not fit into {field.type}: {error}", do=_DECLARE
        ) from error
