"""Keys and values in SlateDB: a log and sorted tables, as objects in a directory or a bucket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import urlsplit

import msgspec
from slatedb import uniffi as slatedb

from headrace.errors import HeadraceError
from headrace.storage import S3Options, open_objects
from headrace.stores.kv.contract import (
    KeyValueSnapshot,
    KeyValueStore,
    WriteBatch,
    WriteSequence,
    prefix_end,
)
from headrace.stores.kv.kv_directory import (
    FORMAT,
    RECORD,
    KvBackend,
    KvDirectory,
    KvRecord,
    decode_record,
)
from headrace.stores.kv.kv_refusal import (
    check_written,
    closed_snapshot,
    closed_store,
    failed_earlier,
)
from headrace.stores.kv.slatedb_calls import (
    DATABASE,
    SlatedbLoop,
    local_objects,
    s3_objects,
    scan_options,
    settings,
    slatedb_errors,
)
from headrace.stores.kv.slatedb_files import SEQUENCE_KEY, SlatedbFiles

_KEYS = b"k"
"""Begins all keys of entries."""
_KEYS_END = prefix_end(_KEYS)
_LOG_OBJECTS_MAX = 1_000
"""After this many, what nobody needs is removed."""
_ROWS_AT_FIRST = 16
_ROWS_MAX = 1_024
_BYTES_AT_ONCE = 1 << 16
_LEAVE = slatedb.CloseOptions(flush_type=None)
_FLUSH_LOG = slatedb.FlushOptions(flush_type=slatedb.FlushType.WAL)


class SlatedbKeyValueStore(KeyValueStore):
    """A store in a local directory or on S3.

    A directory has one process at a time. On S3 the last process to open the store takes it over,
    and every write of the one before raises FencedError.
    """

    def __init__(self, location: Path | str, **options: Unpack[S3Options]) -> None:
        """Open the store in a directory, or at `s3://bucket/prefix`; only S3 takes options."""
        self.where = str(location)
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._failure: HeadraceError | None = None
        """Why nothing can be written any more."""
        self._is_closed = False
        self._files: SlatedbFiles | None = None
        self._directory: KvDirectory | None = None
        self._loop = SlatedbLoop()
        try:
            if isinstance(location, Path):
                self._open_directory(location)
            else:
                self._open_s3(location, options)
        except BaseException:
            self._free()
            raise

    def _open_directory(self, path: Path) -> None:
        self._directory = KvDirectory(path, KvBackend.SLATEDB)
        self._files = SlatedbFiles(path, self._loop)
        self._files.recover(is_recorded=self._directory.is_recorded)
        self._build(DATABASE, local_objects(path), is_local=True)
        self._files.sync(self._sequence)
        self._log_begin = self._files.synced.log
        if self._files.count() > _LOG_OBJECTS_MAX:
            self._files.collect_garbage()
        self._directory.record()

    def _open_s3(self, url: str, options: S3Options) -> None:
        objects = open_objects(url, **options)
        record = KvRecord(FORMAT, KvBackend.SLATEDB)
        if not objects.put_if_absent(RECORD, msgspec.json.encode(record)):
            decode_record(objects.get(RECORD), f"{url}/{RECORD}")
        prefix = urlsplit(url).path.strip("/")
        database = f"{prefix}/{DATABASE}" if prefix else DATABASE
        self._build(database, s3_objects(url, options), is_local=False)

    def _build(self, database: str, objects: Any, *, is_local: bool) -> None:
        builder = slatedb.DbBuilder(database, objects)
        builder.with_settings(settings(is_local=is_local))
        with slatedb_errors(self.where):
            self._db = self._loop.run(builder.build)
            last = self._loop.run(lambda: self._db.get_key_value(SEQUENCE_KEY))
        self._sequence = self._durable = WriteSequence(last.seq if last else 0)

    def write(self, batch: WriteBatch) -> WriteSequence:
        batch.check()
        with self._writing:
            self._check_open()
            if not batch.changes:
                return self._sequence
            made = slatedb.WriteBatch()
            made.put(SEQUENCE_KEY, b"")
            for key, value in batch.changes.items():
                if value is None:
                    made.delete(_KEYS + key)
                else:
                    made.put(_KEYS + key, value)
            with self._fatal_errors():
                handle = self._loop.run(lambda: self._db.write(made))
            self._sequence = WriteSequence(handle.seqnum())
            return self._sequence

    def wait_durable(self, sequence: WriteSequence) -> None:
        check_written(sequence, self._sequence)
        with self._syncing:
            if sequence <= self._durable:
                return
            self._check_open()
            covered = self._sequence
            with self._fatal_errors():
                self._loop.run(lambda: self._db.flush_with_options(_FLUSH_LOG))
                if self._files is not None:
                    self._sync_files(self._files, covered)
            self._durable = covered

    def _sync_files(self, files: SlatedbFiles, sequence: WriteSequence) -> None:
        files.sync(sequence)
        if files.synced.log - self._log_begin > _LOG_OBJECTS_MAX:
            self._log_begin = files.synced.log
            files.collect_garbage()

    @property
    def durable_sequence(self) -> WriteSequence:
        return self._durable

    def snapshot(self) -> SlatedbSnapshot:
        with self._writing:  # So that no batch comes between the snapshot and its sequence.
            self._check_closed()
            with slatedb_errors(self.where):
                made = self._loop.run(self._db.snapshot)
            return SlatedbSnapshot(made, self._sequence, self._loop, self.where)

    def close(self) -> None:
        with self._writing, self._syncing:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._failure is not None:
                    with suppress(slatedb.Error):  # The failure was raised before.
                        self._loop.run(lambda: self._db.shutdown_with_options(_LEAVE))
                    return
                with slatedb_errors(self.where):
                    self._loop.run(self._db.shutdown)
                if self._files is not None:
                    self._files.sync(self._sequence)
            finally:
                self._free()

    def _free(self) -> None:
        self._loop.close()
        if self._directory is not None:
            self._directory.close()

    def _check_closed(self) -> None:
        if self._is_closed:
            raise closed_store(f"in {self.where}")

    def _check_open(self) -> None:
        self._check_closed()
        if self._failure is not None:
            raise failed_earlier(self.where, self._failure)

    @contextmanager
    def _fatal_errors(self) -> Iterator[None]:
        """After an error of the block, nobody can write until the store is opened again."""
        try:
            with slatedb_errors(self.where):
                yield
        except HeadraceError as error:
            self._failure = error
            raise


class SlatedbSnapshot(KeyValueSnapshot):
    def __init__(self, made: Any, sequence: WriteSequence, loop: SlatedbLoop, where: str) -> None:
        self._made: Any = made
        self._sequence = sequence
        self._loop = loop
        self._where = where

    @property
    def sequence(self) -> WriteSequence:
        return self._sequence

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        made = self._shown()

        async def get_all() -> list[bytes | None]:
            found: list[bytes | None] = await asyncio.gather(
                *(made.get(_KEYS + key) for key in keys)
            )
            return found

        with slatedb_errors(self._where):
            return self._loop.run(get_all)

    def scan(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        made = self._shown()
        if end is not None and start >= end:
            return iter(())
        within = slatedb.KeyRange(
            start=_KEYS + start,
            start_inclusive=True,
            end=_KEYS_END if end is None else _KEYS + end,
            end_inclusive=False,
        )
        options = scan_options(reverse=reverse)
        return self._scan(lambda: made.scan_with_options(within, options))

    def _scan(self, start: Callable[[], Awaitable[Any]]) -> Iterator[tuple[bytes, bytes]]:
        skipped = len(_KEYS)
        with slatedb_errors(self._where):
            entries = self._loop.run(start)
        rows_max = _ROWS_AT_FIRST
        more = True
        while more:
            self._shown()
            with slatedb_errors(self._where):
                rows = self._loop.run(lambda: entries.next_batch(rows_max))  # noqa: B023
            for row in rows:
                yield row.key[skipped:], row.value
            more = len(rows) == rows_max
            size = sum(len(row.value) for row in rows)
            rows_max = _ROWS_MAX if size < _BYTES_AT_ONCE else _ROWS_AT_FIRST

    def close(self) -> None:
        self._made = None

    def _shown(self) -> Any:
        if self._made is None:
            raise closed_snapshot()
        return self._made
