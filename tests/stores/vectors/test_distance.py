"""Ranks by float32 keep what float64 finds nearest, also where float32 is blind."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stores.vectors.distance import (
    Distances,
    Metric,
    Vectors,
    distances,
    may_be_nearest,
    nearest_first,
    rank_errors,
    ranks,
    squared_norms,
)


def plain_distances(metric: Metric, vectors: Vectors, query: Vectors) -> Distances:
    """The definitions, with the widest floats there are."""
    wide, center = vectors.astype(np.longdouble), query.astype(np.longdouble)
    dots = (wide * center).sum(axis=1)
    lengths = np.sqrt((wide**2).sum(axis=1) * (center**2).sum())
    found = {
        Metric.L2: lambda: np.sqrt(((wide - center) ** 2).sum(axis=1)),
        Metric.COSINE: lambda: 1 - dots / lengths,
        Metric.DOT: lambda: -dots,
    }[metric]()
    plain: Distances = found.astype(np.float64)
    return plain


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize(
    ("shift", "scale"), [(0, 1), (1000, 1e-3), (0, 1e15), (0, 1e-15), (1e4, 1.0)]
)
def test_the_candidates_hold_the_k_nearest(metric: Metric, shift: float, scale: float) -> None:
    rng = np.random.default_rng(1)
    vectors = (rng.standard_normal((500, 24)) * scale + shift).astype(np.float32)
    query = (rng.standard_normal(24) * scale + shift).astype(np.float32)
    squares = squared_norms(vectors)
    found = ranks(metric, vectors @ query, squares)
    norm = float(np.linalg.norm(query.astype(np.float64)))
    candidates = may_be_nearest(found, rank_errors(metric, squares, norm, 24), 10)
    best = np.argsort(plain_distances(metric, vectors, query), kind="stable")[:10]
    assert set(best) <= set(candidates)
    assert len(candidates) >= 10
    if scale == 1 and shift == 0:
        assert len(candidates) < 15


@pytest.mark.parametrize("metric", Metric)
def test_distances_are_those_of_the_definition(metric: Metric) -> None:
    rng = np.random.default_rng(2)
    vectors = (rng.standard_normal((100, 8)) * 3 + 5).astype(np.float32)
    query = rng.standard_normal(8).astype(np.float32)
    found = distances(metric, vectors, query)
    assert found == pytest.approx(plain_distances(metric, vectors, query), rel=1e-12)


def test_the_distance_of_a_vector_from_itself() -> None:
    vectors = np.random.default_rng(3).standard_normal((20, 6)).astype(np.float32)
    for vector in vectors:
        assert distances(Metric.L2, vector[None], vector)[0] == 0
        assert 0 <= distances(Metric.COSINE, vector[None], vector)[0] < 1e-15


def test_of_equal_distances_the_lesser_id_comes_first() -> None:
    found, ids = np.array([2.0, 1.0, 1.0, 0.5]), np.array([1, 9, 3, 7])
    assert nearest_first(found, ids, 3).tolist() == [3, 2, 1]


def test_all_are_candidates_if_there_are_no_more_than_k() -> None:
    zeros = np.zeros(3, np.float32)
    assert may_be_nearest(zeros, zeros, 3).tolist() == [0, 1, 2]
    assert may_be_nearest(zeros, zeros, 5).tolist() == [0, 1, 2]
