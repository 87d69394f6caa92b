"""Publishes a DataFrame as one transaction that all Spark tasks join.

The driver begins the transaction and sends its invitation to the tasks. Each task that has
documents joins with a producer of its own, and returns its prepared part. Spark returns the parts
of the winning attempts, and the driver includes only those. The commit rolls back what other
attempts wrote.
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
    """Add the rows to a transaction. The caller commits it."""
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
    """Publish the rows of a Spark task. Return its prepared part; "" if it has no rows."""
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
