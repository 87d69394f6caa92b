"""Rows that are not flushed yet, and what readers keep of them."""

from __future__ import annotations

import pyarrow as pa

from headrace.stores.vectors.distance import Metric
from headrace.stores.vectors.vector_delta import VectorDelta
from headrace.stores.vectors.vector_documents import upserted_rows
from headrace.stores.vectors.vector_rows import VectorSchema, checked_rows

SCHEMA = VectorSchema.of(2, Metric.L2, pa.schema([]))


def delta(name: str, at: float, **records: bytes) -> VectorDelta:
    rows = checked_rows(SCHEMA, upserted_rows(SCHEMA.columns, [name], [[at, 1]], None))
    return VectorDelta(SCHEMA, rows, {key.encode(): value for key, value in records.items()})


def rows_of(found: VectorDelta) -> dict[str, list[float]]:
    rows = found.rows()
    return dict(zip(rows.names.tolist(), rows.vectors.tolist(), strict=True))


def test_of_rows_with_one_id_the_last_counts() -> None:
    merged = VectorDelta(SCHEMA)
    assert merged.is_empty
    for each in (delta("a", 1), delta("b", 2), delta("a", 3, task=b"1"), delta("b", 4)):
        merged.merge(each)
    assert rows_of(merged) == {"a": [3, 1], "b": [4, 1]}
    assert merged.records == {b"task": b"1"}


def test_a_copy_does_not_change() -> None:
    merged = delta("a", 1)
    copied = merged.copy()
    merged.merge(delta("b", 2, task=b"1"))
    assert rows_of(copied) == {"a": [1, 1]}
    assert copied.records == {}


def test_the_size_of_merged_deltas_is_the_sum_of_theirs() -> None:
    parts = [delta("a", 1), delta("b", 2, task=b"1"), delta("a", 3)]
    sizes = [each.size_bytes for each in parts]
    merged = VectorDelta(SCHEMA)
    for each in parts:
        merged.merge(each)
    assert merged.size_bytes == sum(sizes) > 0
    assert merged.copy().size_bytes == sum(sizes)


def test_a_record_alone_is_not_nothing() -> None:
    assert not VectorDelta(SCHEMA, records={b"task": b"1"}).is_empty
