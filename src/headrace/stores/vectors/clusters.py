"""Groups of vectors that are near each other: k-means in batches of matrix products. Pure."""

from __future__ import annotations

import numpy as np

from headrace.stores.vectors.distance import Metric, Positions, Vectors, ranks, squared_norms

_ROUNDS = 8
_SAMPLE = 64
"""Rows of a sample for each group that it is to teach."""
_PRODUCT_MAX = 4_000_000
"""Numbers that one matrix product may yield."""


def prepared(metric: Metric, vectors: Vectors) -> Vectors:
    """Return the vectors as they are grouped: by their direction if the metric is cosine."""
    if metric is not Metric.COSINE:
        return vectors
    lengths = np.sqrt(squared_norms(vectors))[:, None]
    return np.divide(vectors, lengths, dtype=np.float32)


def nearest_centroids(vectors: Vectors, centroids: Vectors) -> Positions:
    """Return the position of the centroid that is nearest to each vector."""
    # Far from zero, float32 would lose the distances in the lengths.
    center = centroids.mean(axis=0, dtype=np.float64).astype(np.float32)
    centroids = centroids - center
    squares = squared_norms(centroids)
    found = np.empty(len(vectors), np.int64)
    step = max(1, _PRODUCT_MAX // len(centroids))
    for start in range(0, len(vectors), step):
        dots: Vectors = (vectors[start : start + step] - center) @ centroids.T
        found[start : start + step] = ranks(Metric.L2, dots, squares).argmin(axis=1)
    return found


def k_means(vectors: Vectors, count: int, rng: np.random.Generator) -> Vectors:
    """Return about `count` centroids, or fewer where vectors are equal."""
    sample = vectors
    if len(vectors) > count * _SAMPLE:
        sample = vectors[np.sort(rng.choice(len(vectors), count * _SAMPLE, replace=False))]
    centroids = sample[rng.choice(len(sample), min(count, len(sample)), replace=False)]
    for _ in range(_ROUNDS):
        groups = nearest_centroids(sample, centroids)
        centroids = _means(sample, groups)
        if missing := count - len(centroids):
            # Groups that lost all their rows begin again somewhere else.
            others = sample[rng.choice(len(sample), min(missing, len(sample)), replace=False)]
            centroids = np.concatenate([centroids, others])
    return centroids


def _means(vectors: Vectors, groups: Positions) -> Vectors:
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    sizes = sizes[sizes > 0]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sums = np.add.reduceat(vectors[order], starts, axis=0)
    return np.divide(sums, sizes[:, None], dtype=np.float32)


def divided(
    vectors: Vectors, group_rows: int, rng: np.random.Generator
) -> list[tuple[Vectors, Positions]]:
    """Divide vectors into groups of about `group_rows`, none more than twice as large.

    Returns the centroid and the positions of each group.
    """
    if len(vectors) <= 2 * group_rows:
        return [
            (vectors.mean(axis=0, dtype=np.float64).astype(np.float32), np.arange(len(vectors)))
        ]
    centroids = k_means(vectors, -(-len(vectors) // group_rows), rng)
    groups = grouped(nearest_centroids(vectors, centroids))
    if len(groups) == 1:
        # They are all alike: nothing but their order divides them.
        pieces = np.array_split(np.arange(len(vectors)), -(-len(vectors) // group_rows))
        return [(centroids[groups[0][0]], piece) for piece in pieces]
    found: list[tuple[Vectors, Positions]] = []
    for _, rows in groups:
        inner = divided(vectors[rows], group_rows, rng)
        found += [(centroid, rows[each]) for centroid, each in inner]
    return found


def grouped(groups: Positions) -> list[tuple[int, Positions]]:
    """Return each group that occurs, with the positions where it does."""
    if not len(groups):
        return []
    order = np.argsort(groups, kind="stable")
    values, starts = np.unique(groups[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:]), strict=True))
