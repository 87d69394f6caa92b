"""A DataFrame becomes one transaction that all Spark tasks join.

The driver begins it and hands its invitation to the tasks. Each task that has documents takes part
with a producer of its own and returns its part prepared. Spark returns what the attempts that won
gave back, and only those parts are included: what other attempts wrote is rolled back with the
commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from headrace.journal.publisher import Transaction
from headrace.journal.workspace import Workspace
from headrace.spark.place import Place


def publish(rows: DataFrame, workspace: Workspace, collection: str, tx: Transaction) -> None:
    """Let the rows be part of a transaction, for the caller to commit."""
    take_part = partial(_take_part, Place.of(workspace), tx.invite(), collection)
    for prepared in rows.mapInArrow(take_part, "prepared string").collect():
        tx.include(prepared[0])


def _take_part(
    place: Place, invitation: str, collection: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with_rows = (batch for batch in batches if batch.num_rows)
    if (first := next(with_rows, None)) is None:
        return
    with place.shared().join(invitation) as participant:
        participant.append(collection, first)
        for batch in with_rows:
            participant.append(collection, batch)
        yield pa.record_batch({"prepared": [participant.prepare()]})
