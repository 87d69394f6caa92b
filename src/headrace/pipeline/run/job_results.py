"""What a durable stage has produced, as a table."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import NotFoundError, UsageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.job import Job
from headrace.pipeline.messages import decode_message
from headrace.pipeline.run.job_run import job_payloads, job_topics, run_async
from headrace.pipeline.run.record import Records
from headrace.plan.unified_columns import fit, unify_columns
from headrace.queues.local_backend import LocalBackend

_FETCH = 1000


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
