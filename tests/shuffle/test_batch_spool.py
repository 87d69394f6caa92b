from __future__ import annotations

import os

import pyarrow as pa
import pytest

from headrace.errors import StorageError
from headrace.shuffle.batch_spool import BatchSpool


@pytest.mark.parametrize("memory_bytes", [1 << 20, 100], ids=["in memory", "in a file"])
def test_batches_of_any_schema_come_back_in_order(memory_bytes: int) -> None:
    batches = [
        pa.record_batch(
            {"a": list(range(rows))} if rows % 2 else {"b": ["x"] * rows, "c": [0] * rows}
        )
        for rows in range(20)
    ]
    with BatchSpool(memory_bytes) as spool:
        for batch in batches:
            spool.put(batch)
        found = list(spool.batches())
    assert [each.to_pydict() for each in found] == [each.to_pydict() for each in batches]
    with BatchSpool(memory_bytes) as spool:
        assert list(spool.batches()) == []


def test_a_full_disk_is_one_error_that_names_the_directory() -> None:
    batch = pa.record_batch({"a": ["x" * 1_000_000]})
    with BatchSpool(memory_bytes=0) as spool:
        spool.put(batch)
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), spool._file.fileno())
        with pytest.raises(StorageError, match=r"TMPDIR\): No space left on device; free some"):
            spool.put(batch)
