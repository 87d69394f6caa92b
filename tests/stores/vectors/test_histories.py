"""A vector store holds what a dict holds, and finds what brute force finds, whatever happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.vectors.distance import Metric
from tests.kinds import seeds
from tests.stores.vectors.vector_histories import HistoryKind, VectorHistory, run

pytestmark = pytest.mark.property

STEPS = 60
RECALL = 0.9
"""Of searches in lists of 8 rows that look into 48: far below the default settings."""


class KeptMemory:
    """Memory that outlives the store on it: closing the store does not end it."""

    def __init__(self) -> None:
        self._store = MemoryKeyValueStore()
        self._store.close = lambda: None  # type: ignore[method-assign]

    def __call__(self) -> KeyValueStore:
        return self._store


# proves G24, G26
def test_in_memory() -> None:
    counts: Counter[HistoryKind] = Counter()
    recalls: list[float] = []
    for seed in range(12):
        history = VectorHistory(seed, KeptMemory(), list(Metric)[seed % 3])
        run(history, STEPS)
        counts += history.counts
        recalls += history.recalls
    missing = [kind.name for kind in HistoryKind if not counts[kind]]
    assert not missing, "every kind is there"
    assert np.mean(recalls) >= RECALL


# proves G24, G26
@pytest.mark.parametrize("seed", seeds(3, deep=200))
def test_on_lmdb(seed: int, tmp_path: Path) -> None:
    history = VectorHistory(
        seed, lambda: LmdbKeyValueStore(tmp_path / "kv"), list(Metric)[seed % 3]
    )
    run(history, STEPS)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_in_memory_for_long(seed: int) -> None:
    run(VectorHistory(seed, KeptMemory(), list(Metric)[seed % 3]), 4 * STEPS)
