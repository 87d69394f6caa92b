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

import headrace
from headrace.journal.publisher import Transaction
from headrace.journal.workspace import Workspace

_opened: dict[tuple[str, str], Workspace] = {}
"""Of this process: a worker of Spark is used again for the next task."""


def publish(rows: DataFrame, workspace: Workspace, collection: str, tx: Transaction) -> None:
    """Let the rows be part of a transaction, for the caller to commit."""
    place = str(workspace.directory or workspace.place)
    take_part = partial(_take_part, place, workspace.token, tx.invite(), collection)
    for prepared in rows.mapInArrow(take_part, "prepared string").collect():
        tx.include(prepared[0])


def _take_part(
    place: str, token: str, invitation: str, collection: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with_rows = (batch for batch in batches if batch.num_rows)
    if (first := next(with_rows, None)) is None:
        return
    with _workspace(place, token).join(invitation) as participant:
        participant.append(collection, first)
        for batch in with_rows:
            participant.append(collection, batch)
        yield pa.record_batch({"prepared": [participant.prepare()]})


def _workspace(place: str, token: str) -> Workspace:
    key = place, token
    if key not in _opened:
        _opened[key] = headrace.open(place, token=token, create=False)
    return _opened[key]
