"""How near vectors are: numpy's BLAS ranks many of them, float64 decides. Pure.

A matrix product in float32 is fast and a little wrong. So a search ranks all candidates by it,
keeps each that may be among the k nearest within the greatest possible error, and computes the
distances of those few again in float64. What an exact search returns is therefore exact.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
Distances = npt.NDArray[np.float64]

NORM_MAX = 1e18
"""Longer vectors are refused: their squares would not fit into float32."""
COSINE_NORM_MIN = 1e-15
"""Shorter vectors have no direction in float32, so a store that compares directions refuses them.
"""

_ROUNDING = 2.0**-24
_LEAST = 1e-36
"""Below this, float32 rounds to zero or loses digits."""


class Metric(StrEnum):
    """What near means. Every distance is smaller for what is nearer."""

    L2 = "l2"
    """The Euclidean distance."""
    COSINE = "cosine"
    """One minus the cosine of the angle: from 0 to 2."""
    DOT = "dot"
    """The dot product with its sign changed."""


def squared_norms(vectors: Vectors) -> Vectors:
    """Return the square of the length of each vector."""
    wide = vectors.astype(np.float64)
    squares: Vectors = np.einsum("ij,ij->i", wide, wide).astype(np.float32)
    return squares


def ranks(metric: Metric, dots: Vectors, squares: Vectors) -> Vectors:
    """Return numbers in the order of the distances, from the dot products with a query.

    `squares` are the squared lengths of the vectors. `dots` may be a matrix with a row for each
    query; so is then the result.
    """
    match metric:
        case Metric.L2:
            return squares - 2 * dots
        case Metric.COSINE:
            return np.negative(dots / np.sqrt(squares), dtype=np.float32)
        case Metric.DOT:
            return -dots


def rank_errors(metric: Metric, squares: Vectors, query_norm: float, dimension: int) -> Vectors:
    """Return by how much the rank of each vector may be wrong."""
    unit = np.float32(1.01 * (dimension + 8) * _ROUNDING)
    lengths: Vectors = np.sqrt(squares)
    match metric:
        case Metric.L2:
            return _small(unit * squares + unit * 2 * lengths * np.float32(query_norm))
        case Metric.COSINE:
            return _small(np.full(len(squares), 4 * unit * query_norm, np.float32))
        case Metric.DOT:
            return _small(unit * lengths * np.float32(query_norm))


def _small(errors: Vectors) -> Vectors:
    return errors + np.float32(_LEAST)


def may_be_nearest(found: Vectors, errors: Vectors, k: int) -> Positions:
    """Return where the k least ranks may be, whatever the errors are; in no order."""
    if len(found) <= k:
        return np.arange(len(found))
    reached = np.partition(found + errors, k - 1)[k - 1]
    return np.flatnonzero(found - errors <= reached)


def distances(metric: Metric, vectors: Vectors, query: Vectors) -> Distances:
    """Return the distance of each vector from the query, computed in float64."""
    wide, center = vectors.astype(np.float64), query.astype(np.float64)
    match metric:
        case Metric.L2:
            away = wide - center
            return _lengths(away)
        case Metric.COSINE:
            cosines: Distances = (wide @ center) / (_lengths(wide) * np.linalg.norm(center))
            return 1.0 - np.clip(cosines, -1.0, 1.0)
        case Metric.DOT:
            return -(wide @ center)


def _lengths(wide: Distances) -> Distances:
    found: Distances = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return found


def nearest_first(found: Distances, ids: Positions, k: int) -> Positions:
    """Return where the k least distances are, ascending; the lesser id wins a tie."""
    order: Positions = np.lexsort((ids, found))
    return order[:k]
