"""A DataFrame becomes one transaction that all Spark tasks join.

The driver begins it and hands its invitation to the tasks. Each task that has documents takes part
with a producer of its own and returns its part prepared. Spark returns what the attempts that won
gave back, and only those parts are included: what other attempts wrote is rolled back with the
commit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.publisher import Transaction
from headrace.journal.workspace import Workspace
from headrace.spark.source.workspace_option import shared
from headrace.spark.worker_process import for_executors


def publish(rows: DataFrame, workspace: Workspace, collection: str, tx: Transaction) -> None:
    """Let the rows be part of a transaction, for the caller to commit."""
    task = for_executors(_task, workspace.reach(), tx.invite(), collection)
    for prepared in rows.mapInArrow(task, "prepared string").collect():
        tx.include(prepared[0])


def _task(
    reach: WorkspaceRef, invitation: str, collection: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    if prepared := take_part(reach, invitation, collection, batches):
        yield pa.record_batch({"prepared": [prepared]})


def take_part(
    reach: WorkspaceRef, invitation: str, collection: str, batches: Iterator[pa.RecordBatch]
) -> str:
    """What a task does: its part, prepared; nothing if it has no rows."""
    with_rows = (batch for batch in batches if batch.num_rows)
    if (first := next(with_rows, None)) is None:
        return ""
    workspace = shared(reach)
    target = workspace.collection(collection)
    with workspace.join(invitation) as participant:
        participant.append(target, first)
        for batch in with_rows:
            participant.append(target, batch)
        return participant.prepare()
