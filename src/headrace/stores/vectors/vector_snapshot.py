"""A vector store as of one moment: what all readers see until the next flush."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.stores.vectors.distance import Positions, Vectors
from headrace.stores.vectors.filters import Mask, MetadataFilter, evaluate
from headrace.stores.vectors.metadata_columns import MetadataView
from headrace.stores.vectors.posting_lists import PostingLists
from headrace.stores.vectors.row_table import RowTable
from headrace.stores.vectors.vector_matrix import MatrixView
from headrace.stores.vectors.vector_rows import VectorSchema, no_columns

_SCANNED_ROWS = 8192


@dataclass(frozen=True)
class VectorSnapshot:
    """Shared by all readers. Nothing in it changes; what is appended later lies behind it."""

    schema: VectorSchema
    table: RowTable
    count: int
    """Rows of the table that the snapshot has."""
    alive: Mask
    """Which of them were neither deleted nor replaced."""
    slots: Positions
    """Where the vector of each lies in the matrix."""
    list_of: Positions
    """The posting list of each row."""
    matrix: MatrixView
    lists: PostingLists
    memory_bytes: int

    @cached_property
    def live_count(self) -> int:
        return int(np.count_nonzero(self.alive))

    @cached_property
    def metadata_view(self) -> MetadataView:
        return self.table.metadata_view(self.count)

    def find(self, names: Sequence[str]) -> Positions:
        """Return the live row of each name; -1 where there is none."""
        rows = self.table.find(names, self.count)
        found = rows >= 0
        found[found] = self.alive[rows[found]]
        return np.where(found, rows, -1)

    def without(self, rows: Positions) -> VectorSnapshot:
        """Return the snapshot as if these rows, which live, were deleted."""
        alive = self.alive.copy()
        alive[rows] = False
        return replace(self, alive=alive, lists=self.lists.kill(self.list_of[rows]))

    def kept(self, kept: MetadataFilter | None) -> Mask:
        """Return which rows are live and pass the filter."""
        return self.alive if kept is None else self.alive & evaluate(kept, self.metadata_view)

    def vectors(self, rows: Positions) -> Vectors:
        found: Vectors = self.matrix.vectors[self.slots[rows]]
        return found

    def record_batch(self, rows: Positions, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows as they were written: the columns that are named, in that order."""
        schema = self.schema.columns
        wanted = schema.names if columns is None else list(columns)
        if not wanted:
            return no_columns(len(rows))
        taken = [self._column(name, rows) for name in wanted]
        return pa.RecordBatch.from_arrays(
            taken, schema=pa.schema([schema.field(name) for name in wanted])
        )

    def _column(self, name: str, rows: Positions) -> pa.Array:
        if name == "id":
            return pa.array(self.table.names(rows), pa.string())
        if name == "vector":
            flat = pa.array(np.ascontiguousarray(self.vectors(rows)).reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, self.schema.dimension)
        return self.metadata_view.columns[name].take(rows)

    def scan(
        self, kept: MetadataFilter | None, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the filter keeps, oldest first."""
        rows = np.flatnonzero(self.kept(kept))
        for start in range(0, len(rows), _SCANNED_ROWS):
            yield self.record_batch(rows[start : start + _SCANNED_ROWS], columns)
