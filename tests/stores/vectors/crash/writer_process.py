"""A process that writes to a vector store until it is killed, and says what it knows is durable."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.settings import VectorSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.kv.kv_location import open_kv
from headrace.stores.vectors.vector_store import VectorStore

DIMENSION = 4
SETTINGS = VectorSettings(
    list_rows=8, tail_rows_max=24, probe_rows=48, exact_rows_max=10, garbage_rows_min=16
)
TASK, GENERATION = "fill", "g1"

Expected = dict[str, tuple[list[float], int]]


def write_number(seed: int, number: int) -> pa.RecordBatch:
    """Return the rows of one write: ids of a small range, a third of them deletions."""
    rng = np.random.default_rng([seed, number])
    count = int(rng.integers(1, 30))
    vectors = rng.standard_normal((count, DIMENSION)).astype(np.float32)
    return pa.RecordBatch.from_pydict(
        {
            "id": [f"id-{i}" for i in rng.integers(0, 200, count)],
            "vector": pa.array(vectors.tolist(), pa.list_(pa.float32())),
            "number": pa.array([number] * count, pa.int64()),
            "_deleted": rng.random(count) < 0.3,
        }
    )


def change(expected: Expected, rows: pa.RecordBatch) -> None:
    """Change what is expected as the store changes."""
    for row in rows.to_pylist():
        if row["_deleted"]:
            expected.pop(row["id"], None)
        else:
            expected[row["id"]] = row["vector"], row["number"]


def open_store(path: str) -> VectorStore:
    return VectorStore.create(
        open_kv(Path(path)), DIMENSION, "l2", pa.schema([("number", pa.int64())]), SETTINGS
    )


def write_forever(path: str, told: str, seed: int) -> None:
    """Write, flush now and then, and append to `told` how many writes are durable."""
    store = open_store(path)
    number = store.take(TASK, GENERATION)
    rng = np.random.default_rng([seed, number, 1])
    file = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        number += 1
        # Every write is a checkpoint, so that whoever opens the store knows how far it came.
        store.apply(write_number(seed, number), StoreCheckpoint(TASK, GENERATION, number))
        os.write(file, f"{number}\n".encode())
        if rng.random() < 0.02:
            store.close()
            store = open_store(path)
