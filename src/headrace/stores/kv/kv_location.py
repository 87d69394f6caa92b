"""Opens the key-value store at a location."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack
from urllib.parse import unquote

from headrace.errors import UsageError
from headrace.storage import S3Options
from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.kv.kv_directory import KvBackend, read_record
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore


def open_kv(
    location: str | Path, backend: KvBackend | str | None = None, **options: Unpack[S3Options]
) -> KeyValueStore:
    """Open the store at a location, or create it; only S3 takes options.

    The location is a directory, `file:///path`, `s3://bucket/prefix`, or `memory://`, which is new
    and empty every time. A directory keeps the backend that made it; a new one is LMDB's unless
    `backend` says another.
    """
    chosen = None if backend is None else _backend(backend)
    scheme, separator, rest = str(location).partition("://")
    if separator and not isinstance(location, Path) and scheme != "file":
        return _open_url(str(location), scheme, chosen, options)
    if options:
        raise UsageError(f"{location} takes no options", do="give them to an s3:// URL only")
    path = Path(unquote(rest)) if separator and not isinstance(location, Path) else Path(location)
    if chosen is None:
        record = read_record(path)
        chosen = KvBackend.LMDB if record is None else _backend(record.backend)
    if chosen is KvBackend.MEMORY:
        raise _unfit(str(location), chosen, "lmdb or slatedb")
    return LmdbKeyValueStore(path) if chosen is KvBackend.LMDB else SlatedbKeyValueStore(path)


def _open_url(url: str, scheme: str, chosen: KvBackend | None, options: S3Options) -> KeyValueStore:
    if scheme == "memory":
        if chosen not in (None, KvBackend.MEMORY):
            raise _unfit(url, chosen, "memory")
        return MemoryKeyValueStore()
    if scheme == "s3":
        if chosen not in (None, KvBackend.SLATEDB):
            raise _unfit(url, chosen, "slatedb")
        return SlatedbKeyValueStore(url, **options)
    raise UsageError(
        f"{url} is not the location of a key-value store",
        do="give a directory, file:///path, s3://bucket/prefix or memory://",
    )


def _unfit(where: str, backend: KvBackend, fit: str) -> UsageError:
    return UsageError(f"the backend {backend} cannot keep {where}", do=f"use {fit}")


def _backend(name: str) -> KvBackend:
    try:
        return KvBackend(name)
    except ValueError as error:
        raise UsageError(
            f"there is no backend {name!r} for key-value stores",
            do=f"choose from {', '.join(KvBackend)}",
        ) from error
