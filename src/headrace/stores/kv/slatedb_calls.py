"""What this project needs of SlateDB's Python binding: its thread, its errors and its options."""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slatedb import uniffi as slatedb
from slatedb.uniffi._slatedb_uniffi import slatedb as generated

from headrace.errors import DataError, FencedError, HeadraceError, StorageError
from headrace.storage import S3Options
from headrace.stores.kv.kv_refusal import closed_snapshot

T = TypeVar("T")

DATABASE = "slatedb"
"""The folder of all objects that SlateDB writes, below the location of the store."""

_SCAN = {
    # With these a scan from a disk or S3 is many times as fast as with the defaults.
    "read_ahead_bytes": 1 << 20,
    "max_fetch_tasks": 4,
    "durability_filter": slatedb.DurabilityLevel.MEMORY,
    "dirty": False,
    "cache_blocks": True,
}
# Without a limit it tries for ever to write to a full disk.
_RETRIES = 3
# Each close makes a table. With more of them a store waits for its compactor.
_TABLES_MAX = 32
_DO = "free some space there, or mend it; then open the store again"


class SlatedbLoop:
    """The thread whose event loop every call of the binding runs in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headrace-slatedb", daemon=True
        )
        self._thread.start()

    def run(self, start: Callable[[], Awaitable[T]]) -> T:
        """Make the awaitable in the loop, wait for it, and return what it returns.

        Raises UsageError if somebody closes the loop meanwhile.
        """

        async def in_loop() -> T:
            return await start()

        with self._lock:
            if self._is_closed:
                raise closed_snapshot()
            future = asyncio.run_coroutine_threadsafe(in_loop(), self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise closed_snapshot() from error

    def close(self) -> None:
        """End the thread, and every call that waits. Closing twice does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True

        async def cancel_all() -> None:
            calls = asyncio.all_tasks() - {asyncio.current_task()}
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def slatedb_errors(where: str) -> Iterator[None]:
    """Turn errors of the binding into those of this project."""
    try:
        yield
    except slatedb.Error as error:
        raise _translate(error, where) from error


def _translate(error: Any, where: str) -> HeadraceError:
    message = getattr(error, "message", str(error))
    reason = getattr(error, "reason", None)
    if reason is slatedb.CloseReason.FENCED or "fenced" in message.lower():
        return FencedError(
            f"another process took over the store in {where}",
            do="let that process serve it, or end it and open the store again",
        )
    if isinstance(error, slatedb.Error.Data):
        return DataError(
            f"the store in {where} is damaged: {message}", do="restore the store from a copy"
        )
    return StorageError(f"the store in {where} failed: {message}", do=_DO)


def local_objects(path: Path) -> Any:
    builder = slatedb.ObjectStoreBuilder(slatedb.ObjectStoreType.LOCAL)
    builder.with_config("local_path", str(path))
    return builder.build()


def s3_objects(url: str, options: S3Options) -> Any:
    """Return SlateDB's objects of a bucket. The `AWS_*` variables count as elsewhere."""
    builder = slatedb.ObjectStoreBuilder.from_env(slatedb.ObjectStoreType.S3)
    builder.with_config("bucket", urlsplit(url).netloc)
    for name, value in options.items():
        if value:
            key = "token" if name == "session_token" else name
            builder.with_config(key, str(value).lower() if value is True else str(value))
    return builder.build()


def scan_options(*, reverse: bool) -> Any:
    order = slatedb.IterationOrder.DESCENDING if reverse else slatedb.IterationOrder.ASCENDING
    return slatedb.ScanOptions(**_SCAN, order=order)


def settings(*, is_local: bool) -> Any:
    made = slatedb.Settings.default()
    chosen: dict[str, object] = {
        "object_store_max_retries": _RETRIES,
        "l0_max_ssts": _TABLES_MAX,
        "l0_max_ssts_per_key": _TABLES_MAX,
    }
    if is_local:
        # Here a look costs nothing, and a writer with too many tables waits for the next one.
        for each in ("poll_interval", "worker.compactions_poll_interval"):
            chosen[f"compactor_options.{each}"] = "100ms"
        chosen["compactor_options.commit_compacted_interval"] = "100ms"
        chosen["garbage_collector_options"] = None
    for name, value in chosen.items():
        made.set(name, json.dumps(value))
    return made


def copy_bytes_at_once() -> None:
    """Let the binding copy the bytes of a value by one call, 60 times as fast as one by one."""

    def write(builder: Any, value: bytes) -> None:
        length = len(value)
        with builder._reserve(length):
            if length:
                begin = ctypes.addressof(builder.rbuf.data.contents) + builder.rbuf.len
                ctypes.memmove(begin, bytes(value), length)

    generated._UniffiRustBufferBuilder.write = write


copy_bytes_at_once()
