"""A vector store: upsert by id, delete, get, and search among the rows that pass a filter."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DocumentError, QueryError, StorageError, UsageError
from headrace.ingest.contract import Epoch
from headrace.ingest.ingest_handle import Coordinator
from headrace.settings import IngestSettings, VectorSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.contract import Store
from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.task_checkpoints import TaskCheckpoints
from headrace.stores.vectors.distance import Metric, Vectors
from headrace.stores.vectors.filters import MetadataFilter, from_json
from headrace.stores.vectors.vector_delta import VectorDelta
from headrace.stores.vectors.vector_documents import (
    VectorsLike,
    deleted_rows,
    id_list,
    query_matrix,
    upserted_rows,
)
from headrace.stores.vectors.vector_flush import VectorFlush
from headrace.stores.vectors.vector_loader import load
from headrace.stores.vectors.vector_rows import (
    VectorRows,
    VectorSchema,
    check_matrix,
    checked_rows,
)
from headrace.stores.vectors.vector_search import SearchEffort
from headrace.stores.vectors.vector_storage import read_schema, write_schema
from headrace.stores.vectors.vector_view import VectorView

_LOADED_ROWS = 8192

FilterLike = MetadataFilter | Mapping[str, Any] | None


class VectorStore(Store):
    """Vectors of one dimension, in a key-value store that this one owns."""

    def __init__(
        self,
        store: KeyValueStore,
        settings: VectorSettings | None = None,
        ingest: IngestSettings | None = None,
    ) -> None:
        """Open what `create` made. Raises UsageError if the key-value store holds no vectors."""
        self.settings = settings or VectorSettings()
        self._store = store
        self._closing = threading.Lock()
        self._is_closed = False
        self._checkpoints = TaskCheckpoints(self._read_record)
        with store.snapshot() as stored:
            schema = read_schema(stored)
            if schema is None:
                raise UsageError(
                    "the key-value store holds no vectors", do="call VectorStore.create first"
                )
            loaded = load(stored, schema)
        self.vector_schema = schema
        self._ingest = Coordinator(
            VectorFlush(store, loaded, self.settings),
            lambda: VectorDelta(schema),
            loaded.snapshot,
            ingest,
            name="vectors",
        ).start()

    @staticmethod
    def create(
        store: KeyValueStore,
        dimension: int,
        metric: Metric | str = Metric.COSINE,
        metadata: pa.Schema | None = None,
        settings: VectorSettings | None = None,
        ingest: IngestSettings | None = None,
    ) -> VectorStore:
        """Make a vector store of an empty key-value store, and open it.

        Opens it too if it is a vector store already; raises ExistsError if it has another schema.
        """
        write_schema(store, VectorSchema.of(dimension, metric, metadata))
        return VectorStore(store, settings, ingest)

    @property
    def kind(self) -> str:
        return "vectors"

    @property
    def schema(self) -> pa.Schema:
        return self.vector_schema.columns

    # Writing

    def write(self, rows: pa.RecordBatch, timeout_s: float | None = 0.0) -> int:
        """Upsert rows. Those whose column `_deleted` is true are deleted instead.

        Waits up to `timeout_s` for room, without end if it is None. Of rows with one id, the last
        counts.
        """
        self._check_open()
        checked = checked_rows(self.vector_schema, rows)
        self._check_memory(checked)
        return self._ingest.write(VectorDelta(self.vector_schema, checked), timeout_s)

    def upsert(
        self,
        ids: Sequence[str],
        vectors: VectorsLike,
        metadata: pa.RecordBatch | Mapping[str, Sequence[Any]] | None = None,
        timeout_s: float | None = 0.0,
    ) -> int:
        """Add vectors, or replace those that have the same ids; return the epoch for `flush`."""
        return self.write(upserted_rows(self.schema, ids, vectors, metadata), timeout_s)

    def delete(self, ids: Sequence[str], timeout_s: float | None = 0.0) -> int:
        """Delete vectors. Ids that the store does not have are no error."""
        return self.write(deleted_rows(ids), timeout_s)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the vector store is closed", do="open it again")

    def _check_memory(self, rows: VectorRows) -> None:
        if rows.deleted.all():
            return  # Who deletes makes room.
        used, limit = self._ingest.snapshot().memory_bytes, self.settings.memory_bytes_max
        if used + rows.size_bytes > limit:
            raise StorageError(
                f"the vectors use {used} bytes of memory, and {rows.size_bytes} more exceed"
                f" {limit}",
                do="raise memory_bytes_max, or divide the vectors among several stores",
            )

    def flush(self, epoch: int | None = None) -> None:
        self._ingest.flush(None if epoch is None else Epoch(epoch))

    def load(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Write many rows, wait whenever there is no room, and return how many are now durable.

        What was written before an error stays.
        """
        count = 0
        for batch in batches:
            for start in range(0, len(batch), _LOADED_ROWS):
                self.write(batch.slice(start, _LOADED_ROWS), timeout_s=None)
            count += len(batch)
        self.flush()
        return count

    # Checkpoints of tasks

    def generation(self, task: str) -> str:
        self._check_open()
        return self._checkpoints.generation(task)

    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        self._check_open()

        def write(records: dict[bytes, bytes]) -> None:
            self._write_durable(None, records)

        return self._checkpoints.take(task, generation, write, instead_of)

    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        self._check_open()
        checked = checked_rows(self.vector_schema, rows)

        def write(records: dict[bytes, bytes]) -> None:
            self._check_memory(checked)
            self._write_durable(checked, records)

        return self._checkpoints.apply(checkpoint, write)

    def _write_durable(self, rows: VectorRows | None, records: dict[bytes, bytes]) -> None:
        self._ingest.write_durable(VectorDelta(self.vector_schema, rows, records))

    def _read_record(self, key: bytes) -> bytes | None:
        self._ingest.flush()
        with self._store.snapshot() as stored:
            return stored.get(key)

    # Reading

    def view(self, *, fresh: bool = False) -> VectorView:
        """Return the store as of now, for any number of reads of the same rows.

        It shows whole flushes. With `fresh` it also shows what was written and is not flushed yet,
        which a crash may still undo.
        """
        self._check_open()
        if not fresh:
            return VectorView(self._ingest.snapshot(), ())
        found = self._ingest.view()
        return VectorView(found.snapshot, tuple(reversed(found.deltas)))

    def get(
        self, ids: Sequence[str], columns: Sequence[str] | None = None, *, fresh: bool = False
    ) -> pa.RecordBatch:
        """Return the rows of those ids that the store has, in the order of the ids."""
        return self.view(fresh=fresh).get(id_list(ids), columns)

    def search(
        self,
        vector: Sequence[float] | npt.NDArray[Any],
        k: int = 10,
        filter: FilterLike = None,
        **options: Any,
    ) -> pa.RecordBatch:
        """Return the k nearest rows, nearest first: their columns and their `distance`.

        For the options see `search_many`.
        """
        return self.search_many([vector], k, filter, **options)[0]

    def search_many(
        self,
        vectors: VectorsLike,
        k: int = 10,
        filter: FilterLike = None,
        *,
        exact: bool = False,
        fresh: bool = False,
        columns: Sequence[str] | None = None,
        probe_rows: int | None = None,
    ) -> list[pa.RecordBatch]:
        """Return the k nearest rows of each vector, all of one snapshot.

        `exact` scores every row that passes the filter; `probe_rows` is how many are scored else.
        `columns` are those to return; without it all but the vector.
        """
        if not 1 <= k <= self.settings.k_max:
            raise QueryError(f"k is {k}", do=f"choose k from 1 to {self.settings.k_max}")
        queries = self._queries(vectors)
        wanted = self.settings.probe_rows if probe_rows is None else probe_rows
        if wanted < 1:
            raise QueryError(f"probe_rows is {wanted}", do="choose 1 or more")
        effort = None if exact else SearchEffort(wanted, self.settings.exact_rows_max)
        return self.view(fresh=fresh).search(queries, k, as_filter(filter), effort, columns)

    def _queries(self, vectors: VectorsLike) -> Vectors:
        queries = query_matrix(vectors)
        if queries.shape[1] != self.vector_schema.dimension:
            raise QueryError(
                f"the vector has {queries.shape[1]} numbers",
                do=f"the store has the dimension {self.vector_schema.dimension}",
            )
        try:
            check_matrix(self.vector_schema.metric, queries)
        except DocumentError as error:
            raise QueryError(error.what.replace("stored", "searched for"), do="mend it") from error
        return queries

    def scan(
        self, *, filter: FilterLike = None, columns: Sequence[str] | None = None, **selection: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows that pass the filter, oldest first: all columns, or the named ones."""
        if selection:
            raise QueryError(
                f"a scan of vectors knows no {min(selection)!r}", do="use filter and columns"
            )
        return self.view().scan(as_filter(filter), columns)

    def stat(self) -> dict[str, int | float | str]:
        snapshot = self._ingest.snapshot()
        metrics = self._ingest.metrics()
        return {
            "rows": snapshot.live_count,
            "dimension": self.vector_schema.dimension,
            "metric": str(self.vector_schema.metric),
            "lists": len(snapshot.lists.centroids),
            "tail_rows": snapshot.lists.lists[0].live,
            "dead_rows": sum(each.stored - each.live for each in snapshot.lists.lists.values()),
            "memory_bytes": snapshot.memory_bytes,
            "pending_bytes": metrics.pending_bytes,
        }

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._ingest.shutdown()
            finally:
                self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def as_filter(given: FilterLike) -> MetadataFilter | None:
    """Return a filter that was given as such or in JSON's form."""
    if given is None or isinstance(given, MetadataFilter):
        return given
    return from_json(dict(given) if isinstance(given, Mapping) else given)
