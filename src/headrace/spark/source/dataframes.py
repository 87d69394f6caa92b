"""DataFrames of `format("headrace")`, made from a workspace and sources instead of options."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace.journal.workspace import Workspace
from headrace.shuffle.binding import SourceLike, bindings_of
from headrace.spark.query_failure import raised_as_ours
from headrace.spark.registration import register
from headrace.spark.source.workspace_option import WorkspaceLocation
from headrace.spark.spark_session import activate


def stream(
    spark: SparkSession,
    workspace: Workspace,
    sources: Sequence[SourceLike],
    task: str,
    *,
    shards: int = 2,
    documents_max: int | None = None,
    meta: bool = False,
) -> DataFrame:
    """Return a streaming DataFrame whose micro-batches are the checkpoints of a task."""
    activate(spark)
    options = source_options(workspace, sources) | {"task": task, "shards": str(shards)}
    if documents_max is not None:
        options["maxDocumentsPerTrigger"] = str(documents_max)
    reader = spark.readStream.format("headrace").options(**options)
    with raised_as_ours():
        return reader.option("meta", str(meta).lower()).load()


def read(
    spark: SparkSession,
    workspace: Workspace,
    sources: Sequence[SourceLike],
    *,
    partitions: int = 8,
    meta: bool = False,
) -> DataFrame:
    """Return all documents that are committed now: one cut over all sources."""
    register(spark)
    reader = spark.read.format("headrace").options(**source_options(workspace, sources))
    with raised_as_ours():
        return reader.options(partitions=str(partitions), meta=str(meta).lower()).load()


def source_options(workspace: Workspace, sources: Sequence[SourceLike]) -> dict[str, str]:
    """Return the options of the format that say what is read."""
    location = WorkspaceLocation.of(workspace)
    bindings = msgspec.json.encode(bindings_of(sources)).decode()
    return {"workspace": location.path, "token": location.token, "bindings": bindings}
