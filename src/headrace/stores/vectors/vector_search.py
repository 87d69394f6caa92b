"""Finds the nearest vectors of a snapshot: exactly, or in the nearest posting lists. Pure.

Whatever the way, only rows that pass the filter are candidates, and the distances of those that are
returned are exact. What an approximate search may miss are rows of lists that it did not look into.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.stores.vectors.distance import (
    Distances,
    Positions,
    Vectors,
    distances,
    may_be_nearest,
    nearest_first,
    rank_errors,
    ranks,
)
from headrace.stores.vectors.filters import Mask
from headrace.stores.vectors.posting_lists import TAIL
from headrace.stores.vectors.vector_snapshot import VectorSnapshot

_GATHER_SHARE = 0.04
"""Above this share of all slots, one product with the whole matrix is faster than gathering rows.
"""
_GATHERED_ROWS = 8192


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How much a search scores."""

    probe_rows: int
    """Candidates of the nearest lists to score."""
    exact_rows_max: int
    """With at most this many candidates, all are scored."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """Rows of a snapshot, nearest first."""

    rows: Positions
    distances: Distances
    scored: int
    """How many candidates were scored."""


class VectorSearch:
    """Searches a snapshot among the rows of a mask."""

    def __init__(self, snapshot: VectorSnapshot, kept: Mask, effort: SearchEffort | None) -> None:
        """An effort of None asks for exact answers."""
        self._snapshot = snapshot
        self._kept = kept
        self._effort = effort
        self._count = snapshot.live_count if kept is snapshot.alive else np.count_nonzero(kept)
        self._is_exact = (
            effort is None or self._count <= effort.exact_rows_max or not snapshot.lists.centroids
        )
        self._counts = self._count_by_list() if not self._is_exact else None

    @cached_property
    def _rows(self) -> Positions:
        """All candidates."""
        return np.flatnonzero(self._kept)

    def _count_by_list(self) -> Positions:
        """How many candidates each list with a centroid has."""
        snapshot = self._snapshot
        if self._kept is snapshot.alive:
            return snapshot.lists.live
        numbers = snapshot.lists.numbers
        counts = np.bincount(snapshot.list_of[self._rows], minlength=int(numbers.max()) + 1)
        return counts[numbers]

    def nearest(self, query: Vectors, k: int) -> Nearest:
        if not self._count:
            return Nearest(np.empty(0, np.int64), np.empty(0), 0)
        return self._rank(query, k, *self._scored(query, k))

    def _scored(self, query: Vectors, k: int) -> tuple[Positions, Vectors, Vectors]:
        """Return rows, with their dot products and squared lengths."""
        if not self._is_exact:
            return self._probed(query, k)
        matrix = self._snapshot.matrix
        slots = self._snapshot.slots[self._rows]
        if len(slots) > _GATHER_SHARE * len(matrix.rows):
            return self._rows, (matrix.vectors @ query)[slots], matrix.squares[slots]
        dots = np.empty(len(slots), np.float32)
        for start in range(0, len(slots), _GATHERED_ROWS):
            part = slots[start : start + _GATHERED_ROWS]
            dots[start : start + len(part)] = matrix.vectors[part] @ query
        return self._rows, dots, matrix.squares[slots]

    def _probed(self, query: Vectors, k: int) -> tuple[Positions, Vectors, Vectors]:
        """Score the candidates of the nearest lists, and of the tail."""
        matrix, lists = self._snapshot.matrix, self._snapshot.lists
        runs = [(each.start, each.stop) for each in lists.lists[TAIL].chunks]
        for number in self._nearest_lists(query, k).tolist():
            runs += [(each.start, each.stop) for each in lists.lists[number].chunks]
        rows = np.concatenate([matrix.rows[start:stop] for start, stop in runs])
        dots = np.concatenate([matrix.vectors[start:stop] @ query for start, stop in runs])
        squares = np.concatenate([matrix.squares[start:stop] for start, stop in runs])
        fits = self._kept[rows]
        return rows[fits], dots[fits], squares[fits]

    def _nearest_lists(self, query: Vectors, k: int) -> Positions:
        assert self._effort is not None
        assert self._counts is not None
        lists = self._snapshot.lists
        order = lists.by_distance(self._snapshot.schema.metric, query)
        reached = np.cumsum(self._counts[order])
        wanted = max(self._effort.probe_rows, 2 * k)
        enough = int(np.searchsorted(reached, wanted)) + 1
        return lists.numbers[order[:enough]]

    def _rank(
        self, query: Vectors, k: int, rows: Positions, dots: Vectors, squares: Vectors
    ) -> Nearest:
        metric = self._snapshot.schema.metric
        norm = float(np.linalg.norm(query.astype(np.float64)))
        errors = rank_errors(metric, squares, norm, len(query))
        chosen = rows[may_be_nearest(ranks(metric, dots, squares), errors, k)]
        found = distances(metric, self._snapshot.vectors(chosen), query)
        first = nearest_first(found, chosen, k)
        return Nearest(chosen[first], found[first], len(rows))
