"""A process that writes batches of samples until it is killed, and says which are durable."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa

from headrace.settings import IngestSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore, open_timeseries
from tests.stores.timeseries.sample_rows import HOUR_MS

TASK, GENERATION = "task", "g"
BATCH_MOST = 40
START_MS = 400_000 * HOUR_MS


def open_store(path: Path, backend: str) -> TimeSeriesStore:
    return open_timeseries(path, backend=backend, ingest=IngestSettings(flush_interval_s=0.01))


def batch_rows(number: int) -> pa.RecordBatch:
    """Make the samples of a batch. All have its number as their value, and a time of their own."""
    chance = random.Random(number)
    count = chance.randrange(1, BATCH_MOST)
    return pa.RecordBatch.from_pydict(
        {
            "__name__": [f"m{chance.randrange(3)}" for _ in range(count)],
            "batch": [chance.choice([None, str(number), str(number // 7)]) for _ in range(count)],
            "timestamp": [
                START_MS + chance.choice([0, 0, 0, HOUR_MS]) + number * BATCH_MOST + place
                for place in range(count)
            ],
            "value": [float(number)] * count,
        },
        schema=pa.schema(
            {
                "__name__": pa.string(),
                "batch": pa.string(),
                "timestamp": pa.int64(),
                "value": pa.float64(),
            }
        ),
    )


def write_until_killed(path: Path, backend: str, first: int, durable: Path) -> None:
    """Write batches from `first` on. Every third has a checkpoint, of the number that follows.

    Appends the number of each batch to `durable` when the store says that it is durable.
    """
    store = open_store(path, backend)
    checkpoint = store.take(TASK, GENERATION)
    said = os.open(durable, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    number = first
    while True:
        if number % 3 == 0:
            checkpoint += 1
            store.apply(batch_rows(number), StoreCheckpoint(TASK, GENERATION, checkpoint))
            os.write(said, b"%d %d\n" % (number, checkpoint))
        else:
            epoch = store.write(batch_rows(number))
            if number % 3 == 1:
                store.flush(epoch)
                os.write(said, b"%d 0\n" % number)
        number += 1
