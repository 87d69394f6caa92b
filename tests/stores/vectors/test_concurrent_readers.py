"""Readers in other threads see whole flushes while rows move between posting lists."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from headrace.settings import IngestSettings, VectorSettings
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.vectors.distance import Vectors
from headrace.stores.vectors.vector_store import VectorStore

ROWS, FLUSHES, DIMENSION = 400, 60, 8
SMALL = VectorSettings(
    list_rows=16, tail_rows_max=48, probe_rows=64, exact_rows_max=10, garbage_rows_min=200
)


# proves G24
@pytest.mark.long
def test_every_read_shows_one_flush_whole() -> None:
    """Each flush writes all rows again, with its number, and every vector moves by its number."""
    ingest = IngestSettings(flush_interval_s=1000)
    base = np.random.default_rng(1).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    names = [f"row-{i}" for i in range(ROWS)]
    metadata = pa.schema([("flush", pa.int64())])
    with VectorStore.create(
        MemoryKeyValueStore(), DIMENSION, "l2", metadata, SMALL, ingest
    ) as store:
        write = _writer(store, names, base)
        write(0)
        done = threading.Event()
        with ThreadPoolExecutor(3) as readers:
            results = [readers.submit(_read, store, base, seed, done) for seed in range(3)]
            try:
                for number in range(1, FLUSHES):
                    write(number)
            finally:
                done.set()
            assert all(each.result(60) >= 5 for each in results)


def _writer(store: VectorStore, names: list[str], base: Vectors) -> Callable[[int], None]:
    def write(number: int) -> None:
        # Every third flush leaves out a part: those rows are deleted.
        kept = ROWS if number % 3 else ROWS // 2
        vectors = base[:kept] + np.float32(number)
        store.upsert(names[:kept], vectors, {"flush": [number] * kept}, None)
        if kept < ROWS:
            store.delete(names[kept:], None)
        store.flush()

    return write


def _read(store: VectorStore, base: Vectors, seed: int, done: threading.Event) -> int:
    rng = np.random.default_rng(seed)
    reads = last = 0
    while not done.is_set() or reads < 5:
        view = store.view()
        rows = pa.Table.from_batches(view.scan(None, None))
        (number,) = set(rows.column("flush").to_pylist())
        assert number >= last
        assert len(rows) == (ROWS if number % 3 else ROWS // 2)
        row = int(rng.integers(ROWS // 2))
        query = base[row] + np.float32(number)
        for effort_is_exact in (True, False):
            found = store.search_many([query], 3, exact=effort_is_exact)[0].to_pylist()
            (shown,) = {each["flush"] for each in found}
            assert shown >= number
        got = view.get([f"row-{row}"]).to_pylist()[0]
        assert got["flush"] == number
        assert got["vector"] == query.tolist()
        last, reads = number, reads + 1
    return reads
