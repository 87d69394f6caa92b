"""How fast a vector store on LMDB takes vectors and finds them, and how many of the nearest.

The vectors are clusters around random centers, made by a seed. The yardsticks get the same vectors
in the same run: numpy, which multiplies all of them with each query, and usearch, whose index is in
memory only. One query goes to all of them in turn, so that they meet the same moments.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from headrace.bench.peers.usearch_peer import usearch_peer
from headrace.bench.steps import step
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.vectors.distance import Metric, Positions, Vectors, squared_norms
from headrace.stores.vectors.filters import Equals
from headrace.stores.vectors.vector_store import VectorStore

_ROWS, _DIMENSION, _QUERIES, _K = 100_000, 128, 200, 10
_CENTERS, _SPREAD = 1000, 0.35
_BATCH = 1000
_BUCKETS, _BUCKET = 100, 7
_SINGLE_WRITES = 50
_SEED = 20_260

Find = Callable[[Vectors], Positions]


def bench_vectors(directory: Path, scale: float = 1.0) -> dict[str, float]:
    """Fill a store, and search it beside the yardsticks."""
    rng = np.random.default_rng(_SEED)
    centers = rng.standard_normal((_CENTERS, _DIMENSION), dtype=np.float32)
    rows = max(2 * _BATCH, int(_ROWS * scale) // _BATCH * _BATCH)
    vectors, queries = _clustered(rng, centers, rows), _clustered(rng, centers, _QUERIES)
    metadata = pa.schema([("bucket", pa.int64())])
    kv = LmdbKeyValueStore(directory)
    with VectorStore.create(kv, _DIMENSION, Metric.L2, metadata) as store:
        step(f"{rows:,} vectors of {_DIMENSION} numbers into a store")
        figures = {"vectors": float(rows), "vectors_per_s": _fill(store, vectors)}
        step(f"{_QUERIES} searches, in the store and beside it")
        figures |= _search(store, vectors, queries)
        step(f"{_SINGLE_WRITES} vectors, each durable before the next")
        figures["durable_upsert_p50_ms"] = _durable_upsert_ms(store, vectors)
        figures["bytes_per_vector"] = _disk_bytes(directory) / rows
    begin = time.perf_counter()
    VectorStore(LmdbKeyValueStore(directory)).close()
    return figures | {"vectors_reopen_s": time.perf_counter() - begin}


def _clustered(rng: np.random.Generator, centers: Vectors, count: int) -> Vectors:
    near = centers[rng.integers(len(centers), size=count)]
    noise = rng.standard_normal((count, centers.shape[1]), dtype=np.float32)
    return near + np.float32(_SPREAD) * noise


def _fill(store: VectorStore, vectors: Vectors) -> float:
    """Upsert all, until they are durable; return how many a second."""
    names = [f"row-{number}" for number in range(len(vectors))]
    begin = time.perf_counter()
    for start in range(0, len(vectors), _BATCH):
        end = start + _BATCH
        buckets = {"bucket": pa.array(np.arange(start, end) % _BUCKETS)}
        store.upsert(names[start:end], vectors[start:end], buckets, timeout_s=None)
    store.flush()
    return len(vectors) / (time.perf_counter() - begin)


def _search(store: VectorStore, vectors: Vectors, queries: Vectors) -> dict[str, float]:
    squares = squared_norms(vectors)
    kept = Equals("bucket", _BUCKET)
    finders: dict[str, Find] = {
        "store": lambda query: _positions(store.search(query, _K)),
        "exact": lambda query: _positions(store.search(query, _K, exact=True)),
        "filtered": lambda query: _positions(store.search(query, _K, kept)),
        "numpy": lambda query: _brute_force(vectors, squares, query),
    }
    step("an index of the same vectors by usearch, if it is installed")
    peer = usearch_peer(vectors)
    if peer is None:
        step("usearch is not installed: pip install 'headrace[bench]'")
    else:
        finders["usearch"] = lambda query: peer.search(query, _K)
    seconds: dict[str, list[float]] = defaultdict(list)
    hits: dict[str, list[float]] = defaultdict(list)
    truths = [_truth(vectors, query) for query in queries]
    for query, (best, best_kept) in zip(queries, truths, strict=True):
        for name, find in finders.items():
            begin = time.perf_counter()
            found = find(query)
            seconds[name].append(time.perf_counter() - begin)
            wanted = best_kept if name == "filtered" else best
            hits[name].append(len(wanted & set(found.tolist())) / len(wanted))
    figures = {
        "search_p50_ms": median(seconds["store"]) * 1000,
        "search_p99_ms": sorted(seconds["store"])[len(queries) * 99 // 100] * 1000,
        "exact_search_p50_ms": median(seconds["exact"]) * 1000,
        "filtered_search_p50_ms": median(seconds["filtered"]) * 1000,
        "recall_at_10": float(np.mean(hits["store"])),
        "exact_recall_at_10": float(np.mean(hits["exact"])),
        "filtered_recall_at_10": float(np.mean(hits["filtered"])),
        "numpy_search_p50_ms": median(seconds["numpy"]) * 1000,
        "ratio_to_numpy": median(seconds["numpy"]) / median(seconds["store"]),
    }
    if peer is not None:
        figures |= {
            "usearch_vectors_per_s": peer.vectors_per_s,
            "usearch_search_p50_ms": median(seconds["usearch"]) * 1000,
            "usearch_recall_at_10": float(np.mean(hits["usearch"])),
            "ratio_to_usearch": median(seconds["usearch"]) / median(seconds["store"]),
        }
    return figures


def _positions(rows: pa.RecordBatch) -> Positions:
    return np.array([int(name[4:]) for name in rows.column("id").to_pylist()], np.int64)


def _brute_force(vectors: Vectors, squares: Vectors, query: Vectors) -> Positions:
    away = squares - 2 * (vectors @ query)
    nearest = np.argpartition(away, _K)[:_K]
    return nearest[np.argsort(away[nearest])]


def _truth(vectors: Vectors, query: Vectors) -> tuple[set[int], set[int]]:
    """Return the nearest vectors by float64: of all, and of those in the bucket."""
    away = vectors.astype(np.float64) - query
    order = np.argsort(np.einsum("ij,ij->i", away, away))
    in_bucket = order[order % _BUCKETS == _BUCKET]
    return set(order[:_K].tolist()), set(in_bucket[:_K].tolist())


def _durable_upsert_ms(store: VectorStore, vectors: Vectors) -> float:
    seconds = []
    for number in range(_SINGLE_WRITES):
        begin = time.perf_counter()
        store.flush(store.upsert([f"single-{number}"], vectors[number : number + 1]))
        seconds.append(time.perf_counter() - begin)
    return median(seconds) * 1000


def _disk_bytes(directory: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in directory.rglob("*"))
