"""A vector store that any number of processes use at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from starlette.routing import BaseRoute

from headrace.stores.kv.kv_location import open_kv
from headrace.stores.service.arrow_bodies import decode_rows, encode_rows
from headrace.stores.service.row_input import RowsLike, one_batch
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.store_directory import (
    VECTORS,
    StoreSettings,
    metadata_schema,
    vector_schema,
)
from headrace.stores.service.store_kinds import StoreKind
from headrace.stores.vectors.filters import to_json
from headrace.stores.vectors.vector_documents import (
    VectorsLike,
    deleted_rows,
    document_rows,
    id_list,
    query_matrix,
    upserted_rows,
)
from headrace.stores.vectors.vector_store import FilterLike, VectorStore, as_filter


class SearchVectors(msgspec.Struct, frozen=True):
    """Asks for the nearest rows of each vector."""

    vectors: bytes
    """float32, one vector after the other."""
    count: int
    k: int
    filter: dict[str, Any] | None
    is_exact: bool
    columns: list[str] | None


class GetVectors(msgspec.Struct, frozen=True):
    ids: list[str]
    columns: list[str] | None


class SharedVectors(SharedStore):
    """A vector store that is open here or through the process that has it open."""

    def write(self, rows: RowsLike) -> int:
        """Take rows, all or none, and return their epoch for `flush`.

        They have `id`, `vector` and any of the metadata, or `id` and a true `_deleted`.
        """
        schema = vector_schema(self.settings)
        return super().write(one_batch(rows, schema.columns, partial(document_rows, schema)))

    def upsert(
        self,
        ids: Sequence[str],
        vectors: VectorsLike,
        metadata: pa.RecordBatch | Mapping[str, Sequence[Any]] | None = None,
    ) -> int:
        """Add vectors, or replace those that have the same ids; return the epoch for `flush`."""
        return self.write(upserted_rows(self.schema, ids, vectors, metadata))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete vectors. Ids that the store does not have are no error."""
        return self.write(deleted_rows(ids))

    def get(self, ids: Sequence[str], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the rows of those ids that the store has, in the order of the ids."""
        wanted = None if columns is None else list(columns)
        return decode_rows(self.ask(GetVectors(id_list(ids), wanted)))

    def search(
        self,
        vector: Sequence[float] | npt.NDArray[Any],
        k: int = 10,
        filter: FilterLike = None,
        *,
        exact: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """Return the k nearest rows, nearest first: their columns and their `distance`."""
        return self.search_many([vector], k, filter, exact=exact, columns=columns)[0]

    def search_many(
        self,
        vectors: VectorsLike,
        k: int = 10,
        filter: FilterLike = None,
        *,
        exact: bool = False,
        columns: Sequence[str] | None = None,
    ) -> list[pa.RecordBatch]:
        """Return the k nearest rows of each vector, all of one snapshot."""
        queries = query_matrix(vectors)
        kept = as_filter(filter)
        request = SearchVectors(
            queries.astype("<f4").tobytes(),
            len(queries),
            k,
            None if kept is None else to_json(kept),
            exact,
            None if columns is None else list(columns),
        )
        return [decode_rows(each) for each in self.ask(request)]

    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        """Yield rows: see `VectorStore.scan`."""
        if (kept := as_filter(selection.get("filter"))) is not None:
            # As it travels, whoever has the store open.
            selection["filter"] = to_json(kept)
        return super().scan(**selection)


# -- what the owner answers ----------------------------------------------------------------------


def _open(data: Path, settings: StoreSettings) -> VectorStore:
    assert settings.dimension
    kv = open_kv(settings.objects or data, settings.backend)
    try:
        columns = metadata_schema(settings.metadata)
        return VectorStore.create(kv, settings.dimension, settings.metric, columns)
    except BaseException:
        kv.close()
        raise


def _search(store: VectorStore, request: SearchVectors) -> list[bytes]:
    queries = np.frombuffer(request.vectors, "<f4").reshape(request.count, -1)
    found = store.search_many(
        queries, request.k, request.filter, exact=request.is_exact, columns=request.columns
    )
    return [encode_rows(each).to_pybytes() for each in found]


def _get(store: VectorStore, request: GetVectors) -> bytes:
    return bytes(encode_rows(store.get(request.ids, request.columns)).to_pybytes())


def _routes(store: VectorStore) -> Sequence[BaseRoute]:
    from headrace.stores.vectors.vector_api import vector_routes

    return vector_routes(store)


VECTORS_KIND = StoreKind(VECTORS, _open, {SearchVectors: _search, GetVectors: _get}, _routes)
