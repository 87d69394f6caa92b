"""A store as a sink: the rows of a batch and its checkpoint are one atomic write of the store.

The order: **Spark's tasks bring the rows to the disk of the store, each as one part, and return the
names of their parts → the store applies the parts of the attempts that won, together with the
checkpoint, and syncs them.** The driver never holds rows. Parts of attempts that lost go with the
next batch.

The store knows which checkpoint of which generation it holds. A run that opens the sink takes the
task for its generation, so the store refuses every generation before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.errors import (
    DocumentError,
    FencedError,
    HeadraceError,
    SchemaError,
    TransportError,
    UsageError,
)
from headrace.journal.workspace import Workspace
from headrace.spark.sinks.contract import CheckpointId, is_due
from headrace.spark.sinks.sink_generation import check_generation
from headrace.spark.worker_process import for_executors, without_traceback
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service.shared_store import SharedStore, is_store_address
from headrace.stores.service.store_access import open_reference, open_store
from headrace.stores.service.store_directory import TIMESERIES, VECTORS
from headrace.stores.service.store_ref import StoreRef, refer
from headrace.stores.timeseries.input.arrow_samples import TIME, read_rows, read_times
from headrace.stores.vectors.distance import Metric
from headrace.stores.vectors.vector_rows import ID, VECTOR, VectorSchema, checked_rows
from headrace.transport.owned_directory import OwnerAddress

_NAMES = {TIMESERIES: "time series", VECTORS: "vectors"}
_PART = "part string"
_PART_ARROW = pa.schema([("part", pa.string())])


def timeseries(store: str | PathLike[str], *, token: str = "") -> StoreSink:
    """Write samples to a store of time series, exactly once.

    The rows have columns `timestamp` and `value`, and `labels`, a map of strings, or one column of
    strings for each label. `store` is its directory, or the address of the process that serves it,
    which wants the token.
    """
    return StoreSink(TIMESERIES, _location(store), token)


def vectors(store: str | PathLike[str], *, token: str = "") -> StoreSink:
    """Write vectors to a store, exactly once: a row replaces the row with its id.

    The rows have columns `id`, `vector` and any of the store's metadata. A row whose `_deleted` is
    true deletes its id. For `store` and `token` see `timeseries`.
    """
    return StoreSink(VECTORS, _location(store), token)


def _location(store: str | PathLike[str]) -> str:
    if not isinstance(store, str | PathLike) or not fspath(store):
        raise UsageError(
            f"{store!r} is no location of a store", do="give its directory, or its address"
        )
    location = fspath(store)
    return location if is_store_address(location) else str(Path(location).absolute())


class StoreSink:
    is_exactly_once = True

    def __init__(self, kind: str, location: str, token: str) -> None:
        self._kind = kind
        self._location = location
        self._token = token

    def __str__(self) -> str:
        return f"{_NAMES[self._kind]} in {self._location}"

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> StoreTarget:
        store = open_store(self._location, token=self._token, kind=self._kind)
        try:
            return StoreTarget(store, workspace, task)
        except BaseException:
            store.close()
            raise


class StoreTarget:
    def __init__(self, store: SharedStore, workspace: Workspace, opened: CheckpointId) -> None:
        self._store = store
        self._workspace = workspace
        self._opened = opened
        # Tasks of several workspaces may write to one store.
        self._task = f"{workspace.reach().identity}/{opened.task}"
        self._owner: OwnerAddress | None = None
        self._last = 0
        self.reopen()

    def last(self) -> int:
        return self._last

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        if checkpoint.number > self._last + 1:
            self._take()  # Another process may have applied more.
        if is_due(checkpoint, self._opened, self._last, self._store.place):
            self.commit(self.stage(rows, checkpoint), checkpoint)

    def stage(self, rows: DataFrame, checkpoint: CheckpointId) -> list[str]:
        """Bring the rows to the disk of the store, and return their parts. No reader sees them."""
        check_store_columns(self._store, to_arrow_schema(rows.schema, timezone="UTC"))
        stored = self._stored(checkpoint)
        write = for_executors(_stage, refer(self._store), self._store.kind, stored)
        return [part for (part,) in rows.mapInArrow(write, _PART).collect()]

    def commit(self, parts: list[str], checkpoint: CheckpointId) -> None:
        """Apply the parts and the checkpoint, unless the store holds the checkpoint already."""
        self._store.apply_parts(parts, self._stored(checkpoint))
        self._last = max(self._last, checkpoint.number)

    def is_lost(self) -> bool:
        """Return True if the process that has the store open is another one, or is gone."""
        try:
            return self._store.reach() != self._owner
        except TransportError:
            return True

    def reopen(self) -> None:
        self._owner = self._store.reach()
        self._take()

    def close(self) -> None:
        self._store.close()

    def _take(self) -> None:
        """Take the store, unless another generation follows this one: then raise.

        A run that was replaced must not take the store from its successor, also if it is stopped
        just after it found that it is current: the successor has taken the store by then.
        """
        while True:
            present = self._store.generation(self._task)
            check_generation(self._workspace.objects, self._opened)
            try:
                self._last = self._store.take(self._task, self._opened.generation, present)
                return
            except FencedError:
                if self._store.generation(self._task) == present:
                    raise

    def _stored(self, checkpoint: CheckpointId) -> StoreCheckpoint:
        return StoreCheckpoint(self._task, checkpoint.generation, checkpoint.number)


def check_store_columns(store: SharedStore, rows: pa.Schema) -> None:
    """Raise SchemaError, which names the column, if rows with these columns cannot be stored."""
    no_rows = pa.RecordBatch.from_pylist([], schema=rows)
    try:
        if store.kind == TIMESERIES:
            read_rows(no_rows)
            return
        if VECTOR not in rows.names:
            raise DocumentError(f"the rows have no column {VECTOR!r}", do="add it to the rows")
        columns = store.schema
        metadata = [each for each in columns if each.name not in (ID, VECTOR)]
        dimension = columns.field(VECTOR).type.list_size
        checked_rows(VectorSchema.of(dimension, Metric.L2, pa.schema(metadata)), no_rows)
    except HeadraceError as error:
        raise SchemaError(f"{store.place}: {error.what}", do=error.do) from error


# -- in Spark's tasks ----------------------------------------------------------------------


def _stage(
    reference: StoreRef,
    kind: str,
    checkpoint: StoreCheckpoint,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Bring the rows of one partition to the store, and yield the id of the part that they are."""
    with without_traceback(), open_reference(reference) as store:
        fitting = map(_whole_milliseconds, batches) if kind == TIMESERIES else batches
        given = (batch for batch in fitting if batch.num_rows)
        if (first := next(given, None)) is None:
            return
        part = store.stage(chain([first], given), checkpoint)
    yield pa.record_batch([[part]], schema=_PART_ARROW)


def _whole_milliseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cut off the microseconds that Spark's timestamps have, as the store does."""
    number = batch.schema.get_field_index(TIME)
    times = pa.array(read_times(batch.column(number))).cast(pa.timestamp("ms", tz="UTC"))
    return batch.set_column(number, TIME, times)
