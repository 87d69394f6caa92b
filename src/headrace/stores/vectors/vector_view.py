"""Reads of a vector store: a snapshot, and what was written after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.errors import QueryError
from headrace.stores.vectors.distance import Positions, Vectors, nearest_first
from headrace.stores.vectors.filters import MetadataFilter
from headrace.stores.vectors.posting_lists import PostingLists
from headrace.stores.vectors.row_table import RowTable
from headrace.stores.vectors.vector_delta import VectorDelta
from headrace.stores.vectors.vector_matrix import VectorMatrix
from headrace.stores.vectors.vector_rows import VectorRows, no_columns
from headrace.stores.vectors.vector_search import Nearest, SearchEffort, VectorSearch
from headrace.stores.vectors.vector_snapshot import VectorSnapshot

DISTANCE = "distance"


@dataclass(frozen=True)
class VectorView:
    """The rows of a snapshot, replaced by the later ones of deltas. Nothing in it changes."""

    snapshot: VectorSnapshot
    deltas: tuple[VectorDelta, ...]
    """Oldest first."""

    @cached_property
    def _fresh(self) -> VectorSnapshot | None:
        """The rows of the deltas as a snapshot of their own."""
        rows = self._delta_rows
        return None if rows is None else _small_snapshot(self.snapshot, rows)

    @cached_property
    def _delta_rows(self) -> VectorRows | None:
        if not self.deltas:
            return None
        joined = VectorDelta(self.snapshot.schema)
        for each in self.deltas:
            joined.merge(each)
        return joined.rows()

    @cached_property
    def _flushed(self) -> VectorSnapshot:
        """The snapshot without the rows that a delta replaced or deleted."""
        rows = self._delta_rows
        if rows is None:
            return self.snapshot
        replaced = self.snapshot.find(rows.names.tolist())
        return self.snapshot.without(replaced[replaced >= 0])

    @property
    def _layers(self) -> list[VectorSnapshot]:
        return [self._flushed] if self._fresh is None else [self._flushed, self._fresh]

    def get(self, names: Sequence[str], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        wanted = self._columns(columns)
        found, order = [], []
        for layer in self._layers:
            rows = layer.find(names)
            given = np.flatnonzero(rows >= 0)
            found.append(layer.record_batch(rows[given], wanted))
            order.append(given)
        # An id is live in one layer only.
        return _concatenated(found).take(pa.array(np.argsort(np.concatenate(order))))

    def search(
        self,
        queries: Vectors,
        k: int,
        kept: MetadataFilter | None,
        effort: SearchEffort | None,
        columns: Sequence[str] | None,
    ) -> list[pa.RecordBatch]:
        wanted = [name for name in self._columns(columns) if name != "vector" or columns]
        layers = self._layers
        searches = [VectorSearch(layer, layer.kept(kept), effort) for layer in layers]
        answers = []
        for query in queries:
            found = [each.nearest(query, k) for each in searches]
            parts = [
                _answer(layer, each, wanted) for layer, each in zip(layers, found, strict=True)
            ]
            joined = _concatenated(parts)
            away = np.concatenate([each.distances for each in found])
            first = nearest_first(away, np.arange(len(away)), k)
            answers.append(joined if len(parts) == 1 else joined.take(pa.array(first)))
        return answers

    def scan(
        self, kept: MetadataFilter | None, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        wanted = self._columns(columns)
        for layer in self._layers:
            layer.kept(kept)  # what is wrong with the filter is told before the first row
        return (each for layer in self._layers for each in layer.scan(kept, wanted))

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        known: list[str] = self.snapshot.schema.columns.names
        if columns is None:
            return known
        if unknown := [name for name in columns if name not in known]:
            raise QueryError(
                f"the store has no column {unknown[0]!r}", do=f"its columns are {', '.join(known)}"
            )
        return list(dict.fromkeys(columns))


def _answer(layer: VectorSnapshot, found: Nearest, columns: list[str]) -> pa.RecordBatch:
    rows = layer.record_batch(found.rows, columns)
    return rows.append_column(DISTANCE, pa.array(found.distances))


def _concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    if not len(parts[0].schema):
        return no_columns(sum(map(len, parts)))
    return pa.concat_batches(parts)


def _small_snapshot(beside: VectorSnapshot, rows: VectorRows) -> VectorSnapshot:
    """Return rows that were not flushed as a snapshot without posting lists."""
    upserts = rows.take(np.flatnonzero(~rows.deleted))
    table, matrix = RowTable(beside.schema), VectorMatrix(beside.schema.dimension)
    numbers: Positions = np.arange(len(upserts))
    table.append(upserts.names, numbers, upserts.metadata)
    matrix.append(upserts.vectors, numbers)
    return VectorSnapshot(
        beside.schema,
        table,
        table.count,
        np.ones(len(upserts), np.bool_),
        numbers,
        np.zeros(len(upserts), np.int64),
        matrix.view(),
        PostingLists(),
        matrix.nbytes,
    )
