"""All vectors in one matrix, so that posting lists are runs of rows that BLAS can multiply.

A *slot* is a row of the matrix. Slots are only ever appended: a posting list that is rewritten gets
new ones, and nobody refers to its old ones once the readers of older snapshots are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.stores.vectors.distance import Positions, Vectors, squared_norms
from headrace.stores.vectors.metadata_columns import grown


class VectorMatrix:
    """Vectors by slot. One thread appends; others hold views."""

    def __init__(self, dimension: int) -> None:
        self.used = 0
        self._vectors: Vectors = np.empty((0, dimension), np.float32)
        self._squares: Vectors = np.empty(0, np.float32)
        self._rows = np.empty(0, np.int64)

    def append(self, vectors: Vectors, rows: Positions) -> Positions:
        """Add vectors of rows; return their slots."""
        start, end = self.used, self.used + len(vectors)
        self._vectors = grown(self._vectors, start, end)
        self._squares = grown(self._squares, start, end)
        self._rows = grown(self._rows, start, end)
        self._vectors[start:end] = vectors
        self._squares[start:end] = squared_norms(self._vectors[start:end])
        self._rows[start:end] = rows
        self.used = end
        return np.arange(start, end)

    def name_rows(self, rows: Positions) -> None:
        """Say which row each slot holds, where that was not known at first."""
        self._rows[: self.used] = rows

    def view(self) -> MatrixView:
        used = self.used
        return MatrixView(self._vectors[:used], self._squares[:used], self._rows[:used])

    @property
    def nbytes(self) -> int:
        return self.used * (4 * int(self._vectors.shape[1]) + 12)


@dataclass(frozen=True, slots=True)
class MatrixView:
    """The slots that there were at one moment."""

    vectors: Vectors
    squares: Vectors
    """The squared length of each vector."""
    rows: Positions
    """Which row each slot holds the vector of."""
