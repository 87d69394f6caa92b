"""Makes what SlateDB writes into a local directory survive a power failure.

SlateDB never syncs a file. So the store syncs the new ones before it acknowledges a batch: tables,
then the manifests that name them, then the log. The file `synced` then says how far that went. It
is overwritten in place, and within one sector of the disk, so it is old or new.

What was written later may be torn, empty or missing after a power failure, and in any order. So
whoever opens the store returns to the last manifest that was synced, which is no loss: the log
still has what later manifests moved into tables. Then the log is read. Damage behind the last
synced object was never acknowledged, and the log ends before it. Damage in front of it is an error.
"""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from slatedb import uniffi as slatedb

from headrace.errors import DataError
from headrace.files import storage_errors, sync_directory
from headrace.stores.kv.slatedb_calls import (
    DATABASE,
    SlatedbLoop,
    local_objects,
    slatedb_errors,
)

SEQUENCE_KEY = b"s"
"""Every batch puts it, so the log names the sequence of every batch."""

_RECORD = struct.Struct("<QQQQ")
_CHECKSUM = struct.Struct("<I")
_SYNCED = "synced"
_RESTORE = "restore the directory from a copy"
_UNNEEDED_S = 60
"""SlateDB may be about to name younger tables in a manifest."""


class SyncedFiles(NamedTuple):
    """How far the files of a store are synced: numbers of objects, and of a batch."""

    log: int
    manifest: int
    compactions: int
    sequence: int


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A folder of objects that SlateDB numbers from 1 on."""

    folder: Path
    suffix: str

    def path(self, number: int) -> Path:
        return self.folder / f"{number:020d}{self.suffix}"

    def numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (each.removesuffix(self.suffix) for each in os.listdir(self.folder))
        return sorted(int(name) for name in names if name.isdigit())

    def after(self, number: int) -> list[int]:
        """Return the numbers that follow, up to the first that is not there."""
        found = []
        while self.path(number := number + 1).exists():
            found.append(number)
        return found

    def remove(self, numbers: list[int]) -> None:
        for number in numbers:
            self.path(number).unlink()
        if numbers:
            sync_directory(self.folder)


class SlatedbFiles:
    """The files below one directory. One thread calls it at a time."""

    def __init__(self, path: Path, loop: SlatedbLoop) -> None:
        self._path = path
        self._loop = loop
        self._database = path / DATABASE
        self._log = _Numbered(self._database / "wal", ".sst")
        self._manifests = _Numbered(self._database / "manifest", ".manifest")
        self._compactions = _Numbered(self._database / "compactions", ".compactions")
        self._tables = self._database / "compacted"
        self._synced_tables: set[str] = set()
        self.synced = SyncedFiles(0, 0, 0, 0)

    def recover(self, *, is_recorded: bool) -> None:
        """Remove what nobody acknowledged. Raises DataError if something else is damaged."""
        with self._errors():
            record = self._path / _SYNCED
            if record.exists():
                self.synced = self._read_record(record.read_bytes())
            elif is_recorded or any(self._log.path(n).stat().st_size for n in self._log.numbers()):
                raise DataError(f"{record} is missing", do=_RESTORE)
            else:
                # A process died while it created the store.
                shutil.rmtree(self._database, ignore_errors=True)
                return
            for each, last in (
                (self._manifests, self.synced.manifest),
                (self._compactions, self.synced.compactions),
            ):
                each.remove([number for number in each.numbers() if number > last])
        manifest = self._read_manifest()
        with self._errors():
            self._recover_log(manifest)

    def _read_record(self, stored: bytes) -> SyncedFiles:
        content = stored[: _RECORD.size]
        if stored[_RECORD.size :] != _CHECKSUM.pack(crc32(content)):
            raise DataError(f"{self._path / _SYNCED} is damaged", do=_RESTORE)
        return SyncedFiles(*_RECORD.unpack(content))

    def _read_manifest(self) -> Any:
        path = self._manifests.path(self.synced.manifest)
        if not path.exists():
            raise DataError(f"{path} is missing", do=_RESTORE)
        admin = slatedb.AdminBuilder(DATABASE, local_objects(self._path)).build()
        try:
            return self._loop.run(lambda: admin.read_manifest(self.synced.manifest))
        except slatedb.Error as error:
            raise DataError(f"{path} is damaged: {error}", do=_RESTORE) from error

    def _recover_log(self, manifest: Any) -> None:
        found = [n for n in self._log.numbers() if n > manifest.replay_after_wal_id]
        begin = manifest.replay_after_wal_id + 1
        whole = self._check_log(begin, begin + len(self._log.after(begin - 1)), manifest)
        if whole <= self.synced.log:
            path = self._log.path(whole)
            state = "damaged" if path.exists() else "missing"
            raise DataError(f"{path} is {state}", do=_RESTORE)
        self._log.remove([number for number in found if number >= whole])

    def _check_log(self, begin: int, end: int, manifest: Any) -> int:
        """Return the first object of the log that is not whole, or does not follow the others."""
        reader = slatedb.SlateDbWalReader(DATABASE, local_objects(self._path))
        last = manifest.last_l0_seq

        async def check() -> int:
            nonlocal last
            whole = begin
            objects = await reader.iterator(begin)
            while whole < end:
                try:
                    read = await objects.next()
                except slatedb.Error.Data:
                    return whole
                for sequence in sorted(row.seq for row in read.rows if row.key == SEQUENCE_KEY):
                    if sequence > last + 1:
                        return whole
                    last = max(last, sequence)
                whole = read.last_consumed_wal_file_id + 1
            return whole

        with slatedb_errors(str(self._path)):
            whole = self._loop.run(check) if begin < end else begin
        if whole > self.synced.log and last < self.synced.sequence:
            raise DataError(
                f"{self._log.folder} ends with batch {last}, and {self.synced.sequence} was "
                "acknowledged",
                do=_RESTORE,
            )
        return whole

    def sync(self, sequence: int) -> None:
        """Sync all new files. They hold all batches up to `sequence`."""
        with self._errors():
            log = self._log.after(self.synced.log)
            manifests = self._manifests.after(self.synced.manifest)
            compactions = self._compactions.after(self.synced.compactions)
            if manifests:
                self._sync_tables()
            for each, numbers in (
                (self._compactions, compactions),
                (self._manifests, manifests),
                (self._log, log),
            ):
                for number in numbers:
                    _sync_file(each.path(number))
                if numbers:
                    sync_directory(each.folder)
            if manifests:
                sync_directory(self._database)
            synced = SyncedFiles(
                max(log, default=self.synced.log),
                max(manifests, default=self.synced.manifest),
                max(compactions, default=self.synced.compactions),
                max(sequence, self.synced.sequence),
            )
            if synced != self.synced:
                self._write_record(synced)

    def _sync_tables(self) -> None:
        """Sync every table that any manifest names: a table is there before its manifest."""
        if not self._tables.is_dir():
            return
        found = {name for name in os.listdir(self._tables) if name.endswith(".sst")}
        for name in found - self._synced_tables:
            _sync_file(self._tables / name)
        sync_directory(self._tables)
        self._synced_tables = found

    def _write_record(self, synced: SyncedFiles) -> None:
        """Overwrite the record. Only the first one need be durable: an older one promises less.

        `KvDirectory.record` makes its name durable.
        """
        content = _RECORD.pack(*synced)
        descriptor = os.open(
            self._path / _SYNCED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode=0o600
        )
        try:
            os.pwrite(descriptor, content + _CHECKSUM.pack(crc32(content)), 0)
            if not self.synced.manifest:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.synced = synced

    def count(self) -> int:
        """Return how many numbered objects there are."""
        return sum(len(each.numbers()) for each in (self._log, self._manifests, self._compactions))

    def collect_garbage(self) -> None:
        """Remove files that neither the newest manifest nor the last synced one needs.

        A checkpoint keeps what the synced manifest names, even if a compaction replaces it now.
        """
        admin = slatedb.AdminBuilder(DATABASE, local_objects(self._path)).build()
        unneeded = slatedb.GarbageCollectorDirectoryOptions(
            min_age_ms=_UNNEEDED_S * 1000, dry_run=False
        )
        options = slatedb.GarbageCollectorOptions(
            manifest_options=unneeded,
            wal_options=unneeded,
            compacted_options=unneeded,
            compactions_options=unneeded,
        )
        with slatedb_errors(str(self._path)):
            pin = self._loop.run(
                lambda: admin.create_detached_checkpoint(
                    slatedb.CheckpointOptions(lifetime_ms=None, source=None, name="collection")
                )
            )
            self.sync(self.synced.sequence)
            self._loop.run(lambda: admin.run_gc_once(options))
            self._loop.run(lambda: admin.delete_checkpoint(pin.id))

    def _errors(self) -> Any:
        return storage_errors(
            f"the store in {self._path} failed", do="mend that disk; then open the store again"
        )


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
