"""Small map outputs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.exchange import MapOutputWriter, MapTask, Publication
from headrace.storage import Objects

TASK = MapTask(1, 2, 3)
SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
PARTITIONS = 4

Rows = Mapping[int, Sequence[int]]
"""The keys of the rows of each reduce partition."""


def batch(keys: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"key": list(keys), "text": [f"row {key}" for key in keys]}, schema=SCHEMA
    )


def write(
    objects: Objects,
    rows: Rows,
    task: MapTask = TASK,
    *,
    replaces: int = 0,
    now_ms: int = 1_000,
) -> Publication:
    """Publish an attempt of a map task that has these rows."""
    return filled(objects, rows, task, replaces=replaces, now_ms=now_ms).publish()


def filled(
    objects: Objects,
    rows: Rows,
    task: MapTask = TASK,
    *,
    replaces: int = 0,
    now_ms: int = 1_000,
) -> MapOutputWriter:
    writer = MapOutputWriter(
        objects, task, SCHEMA, PARTITIONS, replaces=replaces, now_ms=lambda: now_ms
    )
    for reduce_partition, keys in rows.items():
        writer.write(reduce_partition, batch(keys))
    return writer


def keys_of(table: pa.Table) -> list[int]:
    keys: list[int] = table.column("key").to_pylist()
    return keys


def stored(objects: Objects, prefix: str = "shuffle") -> list[str]:
    return [info.key for info in objects.list(prefix)]
