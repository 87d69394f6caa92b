"""The nearest vectors by usearch, a library with an index in memory, if it is installed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from headrace.stores.vectors.distance import Positions, Vectors


class UsearchPeer:
    """An index of vectors by their position, with the library's own settings."""

    def __init__(self, vectors: Vectors) -> None:
        # Nothing that Headrace runs with needs it.
        from usearch.index import Index

        self._index: Any = Index(ndim=vectors.shape[1], metric="l2sq", dtype="f32")
        begin = time.perf_counter()
        self._index.add(np.arange(len(vectors)), vectors)
        self.vectors_per_s = len(vectors) / (time.perf_counter() - begin)

    def search(self, query: Vectors, k: int) -> Positions:
        return np.asarray(self._index.search(query, k).keys, np.int64)


def usearch_peer(vectors: Vectors) -> UsearchPeer | None:
    """Return an index of the vectors; None if usearch is not installed."""
    try:
        return UsearchPeer(vectors)
    except ImportError:
        return None
