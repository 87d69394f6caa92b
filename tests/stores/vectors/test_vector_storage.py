"""How a vector store lies in a key-value store, and what cannot be one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.stores.kv.contract import WriteBatch
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.vectors.distance import Metric
from headrace.stores.vectors.vector_rows import VectorSchema
from headrace.stores.vectors.vector_storage import DeadRows, check_rows, write_schema


@pytest.mark.parametrize(
    ("numbers", "lists", "said"),
    [
        ([1, 2, 1], [0], "two chunks hold one row"),
        ([0], [0], "a row beyond 4"),
        ([1, 4], [0], "a row beyond 4"),
        ([1], [0, 8, 9], "posting list 8 has no centroid"),
    ],
)
def test_rows_that_no_flush_wrote_are_refused(
    numbers: list[int], lists: list[int], said: str
) -> None:
    check_rows(np.array([1, 3]), 4, [0, 7], {0, 7})
    with pytest.raises(DataError, match=said):
        check_rows(np.array(numbers), 4, lists, {0, 7})


def test_dead_rows_are_kept_page_by_page_and_put_when_they_change() -> None:
    dead, numbers = DeadRows(), [1, 65_535, 65_536, 131_071, 131_072, 200_000]
    dead.add(np.array(numbers))
    batch = WriteBatch()
    dead.put_changes(batch)
    assert len(batch.changes) == 4
    assert dead.numbers.tolist() == numbers
    dead.remove(np.array([65_536, 131_071, 200_000]))
    batch = WriteBatch()
    dead.put_changes(batch)
    assert sorted(value is None for value in batch.changes.values()) == [True, True]
    assert dead.numbers.tolist() == [1, 65_535, 131_072]
    batch = WriteBatch()
    dead.put_changes(batch)
    assert batch.changes == {}


def test_a_store_that_was_created_survives_a_power_failure(tmp_path: Path) -> None:
    with closing(LmdbKeyValueStore(tmp_path / "store")) as store:
        write_schema(store, VectorSchema.of(2, Metric.L2, None))
        with store.snapshot() as snapshot:
            assert store.durable_sequence == snapshot.sequence
