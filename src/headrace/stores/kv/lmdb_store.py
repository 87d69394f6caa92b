"""Keys and values in one LMDB environment.

A commit writes new pages beside those of the last two, syncs them, and then writes the small page
that makes them the store, which it does not sync. The next commit syncs that page together with its
own; `wait_durable` does if no commit came. So each batch costs one sync and each wait one more,
and a power failure leaves the last batch but one or the last, whole.

LMDB has no checksums: every value begins with one of its own, over key and value.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import cast
from zlib import crc32

import lmdb

from headrace.errors import DataError, HeadraceError, StorageError
from headrace.files import storage_errors
from headrace.stores.kv.contract import (
    KEY_BYTES_MAX,
    KeyValueSnapshot,
    KeyValueStore,
    WriteBatch,
    WriteSequence,
)
from headrace.stores.kv.kv_directory import KvBackend, KvDirectory
from headrace.stores.kv.kv_refusal import (
    check_written,
    closed_snapshot,
    closed_store,
    failed_earlier,
)
from headrace.stores.kv.lmdb_pages import check_pages

MAP_BYTES = 1 << 40
"""A store can grow to this size. LMDB reserves addresses for it, and no memory or disk."""
SNAPSHOTS_MAX = 4096

_DATA = "data.mdb"
_ENTRIES = b"entries"
_OPENED = b"opened"
_CHECKSUM_BYTES = 4
_CHUNK_ENTRIES = 1024
_CHUNK_BYTES = 1 << 20
_DAMAGES = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)
_RESTORE = "restore the directory from a copy"

Entries = Iterator[tuple[bytes, bytes]]


class LmdbKeyValueStore(KeyValueStore):
    """A store in a local directory. One process opens it at a time."""

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES) -> None:
        self.path = path
        self._map_bytes = map_bytes
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._failure: HeadraceError | None = None
        """Why nothing can be written any more."""
        self._snapshots: weakref.WeakSet[LmdbSnapshot] = weakref.WeakSet()
        self._is_closed = False
        self._directory = KvDirectory(path, KvBackend.LMDB)
        try:
            self._check_file()
            with self._errors():
                self._env = lmdb.open(
                    str(path),
                    map_size=map_bytes,
                    max_dbs=1,
                    max_readers=SNAPSHOTS_MAX,
                    metasync=False,
                )
            try:
                self._begin()
            except BaseException:
                self._env.close()
                raise
        except BaseException:
            self._directory.close()
            raise

    def _check_file(self) -> None:
        """Raise DataError if the file was lost: LMDB would begin an empty store."""
        data = self.path / _DATA
        with storage_errors(f"cannot open {data}", do="choose another directory"):
            size = data.stat().st_size if data.exists() else 0
        if self._directory.is_recorded and size == 0:
            raise DataError(f"{data} is missing or empty", do=_RESTORE)
        if size:
            check_pages(data)

    def _begin(self) -> None:
        self._complete_file()
        with self._errors():
            self._entries = self._env.open_db(_ENTRIES)
            with self._env.begin(write=True) as txn:
                if not self._directory.is_recorded and txn.stat(self._entries)["entries"]:
                    raise DataError(f"{self.path} lost the file kv.json", do=_RESTORE)
                # This commit makes durable whatever a killed process left half-way.
                opened = int(txn.get(_OPENED) or 0) + 1
                txn.put(_OPENED, b"%d" % opened)
                self._sequence = self._durable = WriteSequence(txn.id())
            self._env.sync(True)
        self._directory.record()

    def _complete_file(self) -> None:
        """Give the file the length that LMDB expects, or raise DataError if pages were lost.

        Pages that were freed at once may never have been written. To read beyond the end of a file
        would end the process.
        """
        data = self.path / _DATA
        length = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        with storage_errors(f"cannot open {data}", do="choose another directory"):
            found = data.stat().st_size
            if found >= length:
                return
            os.truncate(data, length)
        try:
            self._check_all()
        except DataError as error:
            os.truncate(data, found)
            raise DataError(
                f"{data} has lost its end: {found} of {length} bytes are there", do=_RESTORE
            ) from error

    def _check_all(self) -> None:
        with self._errors(), self._env.begin() as txn, txn.cursor() as names:
            if not names.set_key(_ENTRIES):
                return
        with self._errors():
            self._entries = self._env.open_db(_ENTRIES, create=False)
            with self._env.begin(db=self._entries) as txn, txn.cursor() as cursor:
                for key, stored in cursor:
                    self.unpack(key, stored)

    def write(self, batch: WriteBatch) -> WriteSequence:
        batch.check()
        with self._writing:
            self._check_open()
            if not batch.changes:
                return self._sequence
            puts = _pack(batch)
            with self._fatal_errors(), self._env.begin(write=True, db=self._entries) as txn:
                for key in sorted(key for key, value in batch.changes.items() if value is None):
                    txn.delete(key)
                if puts:
                    with txn.cursor() as cursor:
                        cursor.putmulti(puts)
            sequence = WriteSequence(self._env.info()["last_txnid"])
            # A transaction without changes, such as one that deletes what is not there, syncs none.
            if sequence > self._sequence:
                # The commit synced the page that the one before had left unsynced.
                self._durable, self._sequence = max(self._durable, self._sequence), sequence
            return sequence

    def wait_durable(self, sequence: WriteSequence) -> None:
        check_written(sequence, self._sequence)
        with self._syncing:
            if sequence <= self._durable:
                return
            self._check_open()
            self._sync()

    def _sync(self) -> None:
        covered = self._sequence
        with self._fatal_errors():
            self._env.sync(True)
        self._durable = max(self._durable, covered)

    @property
    def durable_sequence(self) -> WriteSequence:
        return self._durable

    def snapshot(self) -> LmdbSnapshot:
        with self._writing:  # Not while close() frees what snapshots use.
            self._check_closed()
            with self._errors():
                snapshot = LmdbSnapshot(self, self._env.begin(db=self._entries))
            self._snapshots.add(snapshot)
            return snapshot

    def close(self) -> None:
        with self._writing, self._syncing:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._failure is None and self._durable < self._sequence:
                    self._sync()
            finally:
                for snapshot in list(self._snapshots):
                    snapshot.close()
                self._env.close()
                self._directory.close()

    def _check_closed(self) -> None:
        if self._is_closed:
            raise closed_store(f"in {self.path}")

    def _check_open(self) -> None:
        self._check_closed()
        if self._failure is not None:
            raise failed_earlier(str(self.path), self._failure)

    @contextmanager
    def _fatal_errors(self) -> Iterator[None]:
        """After an error of the block, nobody can write until the store is opened again."""
        try:
            with self._errors():
                yield
        except HeadraceError as error:
            self._failure = error
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGES as error:
            raise DataError(f"{self.path / _DATA} is damaged: {error}", do=_RESTORE) from error
        except lmdb.MapFullError as error:
            raise StorageError(
                f"the store in {self.path} is full at {self._map_bytes} bytes",
                do="open it with a larger map_bytes",
            ) from error
        except lmdb.ReadersFullError as error:
            raise StorageError(
                f"the store in {self.path} has {SNAPSHOTS_MAX} open snapshots",
                do="close the snapshots that nobody reads",
            ) from error
        except lmdb.Error as error:
            # LMDB calls it an input/output error, too, if the disk takes only part of a page.
            free = shutil.disk_usage(self.path).free >> 20
            raise StorageError(
                f"the store in {self.path} failed: {error} ({free} MiB are free there)",
                do="free some space on that disk, or mend it; then open the store again",
            ) from error

    def unpack(self, key: bytes, stored: bytes) -> bytes:
        """Return the value of a stored one. Raises DataError if it is damaged."""
        value = stored[_CHECKSUM_BYTES:]
        if int.from_bytes(stored[:_CHECKSUM_BYTES], "little") != crc32(value, crc32(key)):
            raise DataError(
                f"{self.path / _DATA} is damaged: the value of key {key.hex()} has another "
                "checksum",
                do=_RESTORE,
            )
        return value


class LmdbSnapshot(KeyValueSnapshot):
    """A read transaction. Its lock keeps threads apart, as LMDB wants for one transaction."""

    def __init__(self, store: LmdbKeyValueStore, txn: lmdb.Transaction) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._txn: lmdb.Transaction | None = txn
        self._sequence = WriteSequence(txn.id())

    @property
    def sequence(self) -> WriteSequence:
        return self._sequence

    def get(self, key: bytes) -> bytes | None:
        with self._read() as txn:
            stored = cast(bytes | None, txn.get(key) if _is_key(key) else None)
        return None if stored is None else self._store.unpack(key, stored)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._read() as txn, txn.cursor() as cursor:
            found = cast(
                dict[bytes, bytes], dict(cursor.getmulti([key for key in keys if _is_key(key)]))
            )
        values = {key: self._store.unpack(key, stored) for key, stored in found.items()}
        return list(map(values.get, keys))

    def scan(self, start: bytes, end: bytes | None, *, reverse: bool = False) -> Entries:
        """Nobody else waits for the scan: it reads ahead by a mebibyte at most."""
        chunks = self._chunks_down(start, end) if reverse else self._chunks_up(start, end)
        unpack = self._store.unpack
        return ((key, unpack(key, stored)) for chunk in chunks for key, stored in chunk)

    def _chunks_up(self, start: bytes, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        more = True
        while more:
            with self._read() as txn, txn.cursor() as cursor:
                if not (cursor.set_range(start) if start else cursor.first()):
                    return
                chunk = _read_chunk(cast(Entries, cursor.iternext()))
            more = not (end is not None and chunk[-1][0] >= end)
            if end is not None and not more:
                chunk = [each for each in chunk if each[0] < end]
            if chunk:
                yield chunk
                start = chunk[-1][0] + b"\0"

    def _chunks_down(self, start: bytes, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        more = True
        while more:
            with self._read() as txn, txn.cursor() as cursor:
                # LMDB seeks the first key from `end` on; the one before it is the last below.
                if end is not None and cursor.set_range(end):
                    if not cursor.prev():
                        return
                elif not cursor.last():
                    return
                chunk = _read_chunk(cast(Entries, cursor.iterprev()))
            more = chunk[-1][0] >= start
            if not more:
                chunk = [each for each in chunk if each[0] >= start]
            if chunk:
                yield chunk
                end = chunk[-1][0]

    def close(self) -> None:
        with self._lock:
            if self._txn is not None:
                self._txn.abort()
                self._txn = None

    @contextmanager
    def _read(self) -> Iterator[lmdb.Transaction]:
        with self._lock:
            if self._txn is None:
                raise closed_snapshot()
            with self._store._errors():
                yield self._txn


def _is_key(key: bytes) -> bool:
    """LMDB raises if it is asked for a key that it cannot hold."""
    return 1 <= len(key) <= KEY_BYTES_MAX


def _pack(batch: WriteBatch) -> list[tuple[bytes, bytes]]:
    """Return the entries to put, by key, as they are stored."""
    puts = sorted(
        ((key, value) for key, value in batch.changes.items() if value is not None),
        key=itemgetter(0),
    )
    return [
        (key, crc32(value, crc32(key)).to_bytes(_CHECKSUM_BYTES, "little") + value)
        for key, value in puts
    ]


def _read_chunk(entries: Entries) -> list[tuple[bytes, bytes]]:
    chunk = []
    size = 0
    for entry in islice(entries, _CHUNK_ENTRIES):
        chunk.append(entry)
        size += len(entry[1])
        if size >= _CHUNK_BYTES:
            break
    return chunk
