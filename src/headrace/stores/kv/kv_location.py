"""Opens the key-value store at a location."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from headrace.errors import UsageError
from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.kv.kv_directory import KvBackend, read_record
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore


def open_kv(location: str | Path, backend: KvBackend | str | None = None) -> KeyValueStore:
    """Open the store at a location, or create it: a directory, `file:///path` or `memory://`.

    A directory keeps the backend that made it; a new one is LMDB's unless `backend` says another.
    """
    chosen = None if backend is None else _backend(backend)
    path = _path(location)
    if path is None:
        if chosen not in (None, KvBackend.MEMORY):
            raise UsageError(f"{location} has no backend {chosen}", do="use the backend memory")
        return MemoryKeyValueStore()
    if chosen is None:
        record = read_record(path)
        chosen = KvBackend.LMDB if record is None else _backend(record.backend)
    if chosen is KvBackend.LMDB:
        return LmdbKeyValueStore(path)
    raise UsageError(f"a directory has no backend {chosen}", do="use the backend lmdb")


def _backend(name: str) -> KvBackend:
    try:
        return KvBackend(name)
    except ValueError as error:
        raise UsageError(
            f"there is no backend {name!r} for key-value stores",
            do=f"choose from {', '.join(KvBackend)}",
        ) from error


def _path(location: str | Path) -> Path | None:
    """Return the directory of a location; None if it is in memory."""
    scheme, separator, rest = str(location).partition("://")
    if isinstance(location, Path) or not separator:
        return Path(location)
    if scheme == "file" and rest.startswith("/"):
        return Path(unquote(rest))
    if scheme == "memory":
        return None
    raise UsageError(
        f"{location} is not the location of a key-value store",
        do="give a directory, file:///path or memory://",
    )
