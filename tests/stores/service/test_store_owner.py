"""What the process that has a store open does when calls cross each other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.stores.checkpoint_record import StoreCheckpoint
from tests.stores.service.row_store import contents, open_rows, some_rows

FIRST = StoreCheckpoint("task", "g", 1)


# proves G14
def test_parts_that_are_applied_twice_at_once_are_applied_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that lost its connection asks again, while its first call is at work."""
    is_applying, is_read_again = threading.Event(), threading.Event()
    with open_rows(place) as store, ThreadPoolExecutor(2) as threads:
        owner = store.owner
        assert owner is not None
        store.take("task", "g")
        part = store.stage([some_rows("a")], FIRST)
        apply, read = owner.store.apply, owner.staging.read

        def slow_apply(rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
            is_applying.set()
            is_read_again.wait(0.5)
            return apply(rows, checkpoint)

        def late_read(parts: Sequence[str], checkpoint: StoreCheckpoint) -> pa.RecordBatch:
            if is_applying.is_set():
                is_read_again.set()
                first.result()
            return read(parts, checkpoint)

        monkeypatch.setattr(owner.store, "apply", slow_apply)
        monkeypatch.setattr(owner.staging, "read", late_read)
        first = threads.submit(owner.apply_parts, [part], FIRST)
        is_applying.wait()
        second = threads.submit(owner.apply_parts, [part], FIRST)
        assert first.result()
        assert not second.result()
        assert contents(store) == {"a": 1}
