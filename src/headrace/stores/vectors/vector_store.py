"""A vector store: upsert by id, delete, get, and search among the rows that pass a filter."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
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
from headrace.stores.vectors.vector_documents import named_array
from headrace.stores.vectors.vector_flush import VectorFlush
from headrace.stores.vectors.vector_loader import load
from headrace.stores.vectors.vector_rows import (
    DELETED,
    ID,
    VECTOR,
    VectorRows,
    VectorSchema,
    check_matrix,
    checked_rows,
)
from headrace.stores.vectors.vector_search import SearchEffort
from headrace.stores.vectors.vector_storage import read_schema, write_schema
from headrace.stores.vectors.vector_view import VectorView

_LOADED_ROWS = 8192

Given = Sequence[Sequence[float]] | npt.NDArray[Any]
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
        self._pending_bytes_max = (ingest or IngestSettings()).pending_bytes_max
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
        self._check_memory(checked.size_bytes)
        return self._ingest.write(VectorDelta(self.vector_schema, checked), timeout_s)

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Given,
        metadata: pa.RecordBatch | Mapping[str, Sequence[Any]] | None = None,
        timeout_s: float | None = 0.0,
    ) -> int:
        """Add vectors, or replace those that have the same ids; return the epoch for `flush`."""
        columns = (
            dict(metadata or {})
            if not isinstance(metadata, pa.RecordBatch)
            else {name: metadata.column(name) for name in metadata.schema.names}
        )
        if taken := {ID, VECTOR, DELETED} & columns.keys():
            raise DocumentError(f"{min(taken)!r} is no metadata", do="leave it out")
        return self.write(
            self._record_batch({ID: _texts(ids), VECTOR: _lists(vectors), **columns}), timeout_s
        )

    def delete(self, ids: Sequence[str], timeout_s: float | None = 0.0) -> int:
        """Delete vectors. Ids that the store does not have are no error."""
        names = _texts(ids)
        return self.write(
            self._record_batch({ID: names, DELETED: pa.array([True] * len(names))}), timeout_s
        )

    def _record_batch(self, columns: Mapping[str, Any]) -> pa.RecordBatch:
        types = {each.name: each.type for each in self.vector_schema.metadata_columns}
        arrays = {
            name: each if isinstance(each, pa.Array) else named_array(name, each, types.get(name))
            for name, each in columns.items()
        }
        if len({len(each) for each in arrays.values()}) > 1:
            sizes = ", ".join(f"{name} {len(each)}" for name, each in arrays.items())
            raise DocumentError(
                f"the columns differ in length: {sizes}", do="give each one value for every row"
            )
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the vector store is closed", do="open it again")

    def _check_memory(self, more_bytes: int) -> None:
        used, limit = self._ingest.snapshot().memory_bytes, self.settings.memory_bytes_max
        if used + more_bytes > limit:
            raise StorageError(
                f"the vectors use {used} bytes of memory, and {more_bytes} more exceed {limit}",
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

    def take(self, task: str, generation: str) -> int:
        self._check_open()
        return self._checkpoints.take(
            task, generation, lambda records: self._write_durable(None, records)
        )

    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        self._check_open()
        checked = checked_rows(self.vector_schema, rows)
        self._check_memory(checked.size_bytes)
        return self._checkpoints.apply(
            checkpoint, lambda records: self._write_durable(checked, records)
        )

    def _write_durable(self, rows: VectorRows | None, records: dict[bytes, bytes]) -> None:
        delta = VectorDelta(self.vector_schema, rows, records)
        # All of a checkpoint goes into one write, whatever its size, and its rows are in memory
        # anyhow: it waits for room as if it were smaller.
        delta.size_bytes = min(delta.size_bytes, self._pending_bytes_max // 2)
        self._ingest.write_durable(delta)

    def _read_record(self, key: bytes) -> bytes | None:
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
        return self.view(fresh=fresh).get(list(ids), columns)

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
        query = np.asarray(vector)
        if query.ndim != 1:
            raise QueryError("a search needs one vector", do="use search_many for several")
        return self.search_many(query[None], k, filter, **options)[0]

    def search_many(
        self,
        vectors: Given,
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

    def _queries(self, vectors: Given) -> Vectors:
        try:
            with np.errstate(over="ignore"):
                queries = np.asarray(vectors).astype(np.float32)
        except (TypeError, ValueError) as error:
            raise QueryError(f"the vector cannot be read: {error}", do="give numbers") from error
        if queries.ndim != 2 or queries.shape[1] != self.vector_schema.dimension:
            raise QueryError(
                f"the vector has {queries.shape[-1] if queries.ndim else 0} numbers",
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
    return from_json(dict(given)) if isinstance(given, Mapping) else given


def _texts(ids: Sequence[str]) -> pa.Array:
    if isinstance(ids, str):
        raise DocumentError("ids are given as one string", do="give a list of strings")
    return named_array(ID, list(ids), pa.string())


def _lists(vectors: Given) -> pa.Array:
    """Return vectors as a column, without a copy of a matrix of float32."""
    if isinstance(vectors, np.ndarray) and vectors.ndim == 2 and vectors.shape[1]:
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    return named_array(VECTOR, [None if each is None else list(each) for each in vectors], None)
