"""Names, numbers and metadata of all rows, in the order in which they were stored.

A row is never changed: an upsert adds another row with the same name. One thread appends. Readers
look only at the rows that their snapshot has, so the table is shared by all snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stores.vectors.distance import Positions
from headrace.stores.vectors.metadata_columns import MetadataColumn, MetadataView, grown
from headrace.stores.vectors.vector_rows import Names, VectorSchema, no_columns

ROW_BYTES = 260
"""About what a row costs beside its vector and its metadata: name, numbers and index."""


class RowTable:
    """Rows by position. `count` of them are there."""

    def __init__(self, schema: VectorSchema) -> None:
        self.schema = schema
        self.count = 0
        self._names: npt.NDArray[Any] = np.empty(0, object)
        self._numbers = np.empty(0, np.int64)
        self._columns = {each.name: MetadataColumn(each) for each in schema.metadata_columns}
        self._newest: dict[str, int] = {}
        """The last row of each name."""
        self._previous: dict[int, int] = {}
        """The row before it with the same name, for readers of older snapshots."""

    def append(self, names: Names, numbers: Positions, metadata: pa.RecordBatch) -> Positions:
        """Add rows, whose names differ from each other; return their positions."""
        start, end = self.count, self.count + len(names)
        self._names = grown(self._names, start, end)
        self._numbers = grown(self._numbers, start, end)
        self._names[start:end] = names
        self._numbers[start:end] = numbers
        for name, column in self._columns.items():
            column.append(start, metadata.column(name))
        given = names.tolist()
        for row, earlier in enumerate(map(self._newest.get, given), start):
            if earlier is not None:
                self._previous[row] = earlier
        # Only now: whoever finds a new row here must find its way back.
        self._newest.update(zip(given, range(start, end), strict=True))
        self.count = end
        return np.arange(start, end)

    def find(self, names: Sequence[str], count: int) -> Positions:
        """Return the last row of each name among the first `count`; -1 where there is none."""
        found = np.fromiter(map(self._newest.get, names, repeat(-1)), np.int64, len(names))
        for place in np.flatnonzero(found >= count):
            row = int(found[place])
            while row >= count:
                row = self._previous.get(row, -1)
            found[place] = row
        return found

    def names(self, rows: Positions) -> Names:
        found: Names = self._names[rows]
        return found

    def numbers(self, rows: Positions) -> Positions:
        """Return the internal ids of rows. They ascend with the rows."""
        found: Positions = self._numbers[rows]
        return found

    def metadata_view(self, count: int) -> MetadataView:
        """Return the metadata of the first rows, for filters."""
        return MetadataView(count, {name: each.view(count) for name, each in self._columns.items()})

    def metadata(self, rows: Positions) -> pa.RecordBatch:
        if not self._columns:
            return no_columns(len(rows))
        taken = [column.view(self.count).take(rows) for column in self._columns.values()]
        return pa.RecordBatch.from_arrays(taken, schema=self.schema.metadata_columns)

    @property
    def nbytes(self) -> int:
        metadata = sum(column.nbytes for column in self._columns.values())
        return ROW_BYTES * len(self._newest) + 16 * len(self._names) + metadata
