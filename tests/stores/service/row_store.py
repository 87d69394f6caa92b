"""A small store of rows with a key, and processes that have it open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import DocumentError, UsageError
from headrace.settings import ServiceSettings
from headrace.stores.checkpoint_record import (
    CheckpointRecord,
    StoreCheckpoint,
    advance,
    checkpoint_key,
    take_over,
)
from headrace.stores.contract import Store
from headrace.stores.kv.contract import WriteBatch
from headrace.stores.kv.kv_location import open_kv
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.store_directory import StoreSettings
from headrace.stores.service.store_kinds import StoreKind

SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())])
QUICK = ServiceSettings(heartbeat_s=0.2, silence_s=5.0)


class AskRow(msgspec.Struct, frozen=True):
    key: str


class DeleteRow(msgspec.Struct, frozen=True):
    key: str


class RowStore(Store):
    """Keeps one value for each key. Rows that are written wait for a flush."""

    def __init__(self, path: Path) -> None:
        self._kv = open_kv(path)
        self._lock = threading.RLock()
        self._pending: list[pa.RecordBatch] = []
        self._epoch = 0
        self._is_closed = False

    @property
    def kind(self) -> str:
        return "timeseries"

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def write(self, rows: pa.RecordBatch) -> int:
        if rows.schema.names != SCHEMA.names:
            raise DocumentError(f"rows have the columns {rows.schema.names}")
        with self._lock:
            if self._is_closed:
                raise UsageError("the store is closed")
            self._pending.append(rows)
            self._epoch += 1
            return self._epoch

    def flush(self, epoch: int | None = None) -> None:
        with self._lock:
            if epoch is not None and not 0 <= epoch <= self._epoch:
                raise UsageError(f"epoch {epoch} was never given out")
            pending, self._pending = self._pending, []
            self._store(pending, {})

    def generation(self, task: str) -> str:
        with self._lock:
            record = self._record(task)
            return record.generation if record else ""

    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        with self._lock:
            record = take_over(self._record(task), task, generation, instead_of)
            self._store([], {checkpoint_key(task): record.encode()})
            return record.number

    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        with self._lock:
            record = advance(self._record(checkpoint.task), checkpoint)
            if record is None:
                return False
            self._store([rows], {checkpoint_key(checkpoint.task): record.encode()})
            return True

    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        prefix: str = selection.pop("prefix", "")
        if selection:
            raise UsageError(f"a scan knows no {', '.join(selection)}")
        found = [each for each in self._rows().items() if each[0].startswith(prefix)]
        for first in range(0, len(found), 1000):
            keys, values = zip(*found[first : first + 1000], strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=SCHEMA)

    def stat(self) -> dict[str, int | float | str]:
        return {"rows": len(self._rows())}

    def value(self, request: AskRow) -> int | None:
        return self._rows().get(request.key)

    def delete(self, request: DeleteRow) -> None:
        batch = WriteBatch()
        batch.delete(b"r" + request.key.encode())
        self._kv.wait_durable(self._kv.write(batch))

    def close(self) -> None:
        if not self._is_closed:
            self.flush()
            self._is_closed = True
            self._kv.close()

    def _record(self, task: str) -> CheckpointRecord | None:
        with self._kv.snapshot() as snapshot:
            return CheckpointRecord.decode(snapshot.get(checkpoint_key(task)))

    def _store(self, rows: list[pa.RecordBatch], records: dict[bytes, bytes]) -> None:
        batch = WriteBatch()
        for each in rows:
            for row in each.to_pylist():
                batch.put(b"r" + row["key"].encode(), str(row["value"]).encode())
        batch.put_many(records.items())
        self._kv.wait_durable(self._kv.write(batch))

    def _rows(self) -> dict[str, int]:
        with self._kv.snapshot() as snapshot:
            found = snapshot.scan(b"r", b"s")
            return {key[1:].decode(): int(value) for key, value in found}


def _open(path: Path, settings: StoreSettings) -> Store:
    return RowStore(path)


KINDS = {
    "timeseries": StoreKind(
        "timeseries", _open, {AskRow: RowStore.value, DeleteRow: RowStore.delete}
    )
}


def open_rows(
    location: str | Path, service: ServiceSettings = QUICK, *, may_own: bool = True
) -> SharedStore:
    return SharedStore(location, service, KINDS, may_own=may_own)


def some_rows(*keys: str, value: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": key, "value": value} for key in keys], SCHEMA)


def contents(store: Store) -> dict[str, int]:
    return {row["key"]: row["value"] for rows in store.scan() for row in rows.to_pylist()}


def staged_files(place: Path) -> list[str]:
    """Return the names of staged parts, finished or not."""
    found = (place / "staged").rglob("*")
    return sorted(each.name for each in found if each.is_file() and each.name != "applied")
