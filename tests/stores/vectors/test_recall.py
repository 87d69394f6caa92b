"""An approximate search finds what an exact one does: most of it, and quickly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.vectors.distance import Metric, Vectors
from headrace.stores.vectors.filters import Between, Equals, MetadataFilter
from headrace.stores.vectors.vector_search import SearchEffort, VectorSearch
from headrace.stores.vectors.vector_store import VectorStore

ROWS, DIMENSION, QUERIES = 100_000, 128, 100
METADATA = pa.schema([("bucket", pa.int64())])

pytestmark = pytest.mark.long


def clustered(count: int, rng: np.random.Generator, centers: Vectors) -> Vectors:
    near = centers[rng.integers(len(centers), size=count)]
    return near + 0.35 * rng.standard_normal((count, DIMENSION), dtype=np.float32)


@pytest.fixture(scope="module", params=Metric)
def filled(request: pytest.FixtureRequest) -> Iterator[tuple[VectorStore, Vectors]]:
    """A store of clustered vectors that came in many flushes, and vectors to search for."""
    rng = np.random.default_rng(11)
    centers = rng.standard_normal((1000, DIMENSION), dtype=np.float32)
    with VectorStore.create(MemoryKeyValueStore(), DIMENSION, request.param, METADATA) as store:
        for start in range(0, ROWS, 5000):
            names = [f"row-{number}" for number in range(start, start + 5000)]
            buckets = pa.array(rng.integers(0, 100, 5000))
            store.upsert(names, clustered(5000, rng, centers), {"bucket": buckets}, None)
        store.flush()
        yield store, clustered(QUERIES, rng, centers)


def recall(
    store: VectorStore,
    queries: Vectors,
    kept: MetadataFilter | None = None,
    probe_rows: int | None = None,
) -> float:
    exact = store.search_many(queries, 10, kept, exact=True, columns=["id"])
    found = store.search_many(queries, 10, kept, columns=["id"], probe_rows=probe_rows)
    shared = [
        len(set(a.column("id").to_pylist()) & set(b.column("id").to_pylist()))
        for a, b in zip(exact, found, strict=True)
    ]
    return sum(shared) / (10 * len(queries))


def test_the_default_search_finds_98_of_100(filled: tuple[VectorStore, Vectors]) -> None:
    store, queries = filled
    assert int(store.stat()["lists"]) > 200
    assert recall(store, queries) >= 0.98


def test_vectors_far_from_zero_are_found_as_well() -> None:
    rng = np.random.default_rng(5)
    centers = rng.standard_normal((200, 16), dtype=np.float32)
    vectors = centers[rng.integers(200, size=30_000)] + 1e4
    vectors += 0.35 * rng.standard_normal(vectors.shape, dtype=np.float32)
    with VectorStore.create(MemoryKeyValueStore(), 16, "l2") as store:
        for start in range(0, len(vectors), 5000):
            names = [f"row-{number}" for number in range(start, start + 5000)]
            store.upsert(names, vectors[start : start + 5000], timeout_s=None)
        store.flush()
        assert recall(store, vectors[:100], probe_rows=8000) >= 0.98


def test_filters_lose_nothing(filled: tuple[VectorStore, Vectors]) -> None:
    store, queries = filled
    assert recall(store, queries, Equals("bucket", 3)) == 1.0
    assert recall(store, queries, Between("bucket", below=50)) >= 0.98


def test_a_default_search_scores_a_small_share(filled: tuple[VectorStore, Vectors]) -> None:
    store, queries = filled
    snapshot = store.view().snapshot
    effort = SearchEffort(store.settings.probe_rows, store.settings.exact_rows_max)
    for kept, most in ((None, 30_000), (Equals("bucket", 3), 1200)):
        search = VectorSearch(snapshot, snapshot.kept(kept), effort)
        assert max(search.nearest(query, 10).scored for query in queries) <= most
