"""A collection as a sink: each checkpoint is one transaction, whose commit stores the checkpoint.

The publisher has the task's name. So a run that opens it fences the runs before: the owner of the
journals refuses what they, and their Spark tasks, still write.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.journal.workspace import Workspace
from headrace.spark.column_check import check_written_columns
from headrace.spark.sinks.contract import CheckpointId, is_due
from headrace.spark.write.commit_payload import (
    PublishedCheckpoint,
    decode_payload,
    encode_payload,
    last_checkpoint,
)
from headrace.spark.write.dataframe_transaction import publish


class CollectionSink:
    is_exactly_once = True

    def __init__(self, collection: str) -> None:
        self._collection = collection

    def __str__(self) -> str:
        return f"collection {self._collection}"

    def open(
        self, spark: SparkSession, workspace: Workspace, task: CheckpointId
    ) -> CollectionTarget:
        workspace.collection(self._collection)
        return CollectionTarget(workspace, self._collection, task)


class CollectionTarget:
    def __init__(self, workspace: Workspace, collection: str, task: CheckpointId) -> None:
        self._workspace = workspace
        self._collection = collection
        self._opened = task
        self._last = 0
        self.reopen()

    def last(self) -> int | None:
        return self._last

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        if not is_due(checkpoint, self._opened, self._last, f"collection {self._collection!r}"):
            return
        collection = self._workspace.collection(self._collection)
        check_written_columns(collection, to_arrow_schema(rows.schema, timezone="UTC"))
        transaction = self._publisher.begin()
        try:
            publish(rows, self._workspace, self._collection, transaction)
        except BaseException:
            transaction.rollback()
            raise
        published = PublishedCheckpoint(checkpoint.generation, checkpoint.number)
        transaction.commit(encode_payload(published))
        self._last = checkpoint.number

    def is_lost(self) -> bool:
        return self._publisher.is_lost()

    def reopen(self) -> None:
        self._publisher = self._workspace.publisher(f"task/{self._opened.task}")
        payload, name = self._publisher.payload, self._publisher.name
        last = decode_payload(payload, PublishedCheckpoint, name)
        self._last = last_checkpoint(last, self._opened.generation)

    def close(self) -> None:
        self._publisher.close()
