"""Claims a directory for one key-value store of one process, and says what the store is.

The lock is the kernel's: it ends with the process, however it ends. The record `kv.json` is written
when the files of a new store are durable. So where the record is, the files must be.
"""

from __future__ import annotations

import fcntl
import os
from enum import StrEnum
from pathlib import Path

import msgspec

from headrace.decoders import decode_json
from headrace.errors import DataError, UsageError, VersionError
from headrace.files import lock, make_directory, storage_errors, sync_directory, write_durably

FORMAT = 1
RECORD = "kv.json"


class KvBackend(StrEnum):
    """What a key-value store keeps its data with."""

    LMDB = "lmdb"
    """One file, in a local directory. The fastest, and the default there."""
    SLATEDB = "slatedb"
    """Many files, in a local directory or on S3."""
    MEMORY = "memory"
    """Nothing outlives the process."""


class KvRecord(msgspec.Struct, frozen=True):
    """What `kv.json` holds."""

    format: int
    backend: str


class KvDirectory:
    """A directory that this process has claimed. Nobody else can, until it is closed."""

    def __init__(self, path: Path, backend: KvBackend) -> None:
        self.path = path
        self._backend = backend
        with storage_errors(f"cannot open the store in {path}", do="choose another directory"):
            make_directory(path)
            self._lock = _lock_directory(path)
        try:
            self.is_recorded = self._check_record()
        except BaseException:
            os.close(self._lock)
            raise

    def _check_record(self) -> bool:
        record = read_record(self.path)
        if record is not None and record.backend != self._backend:
            raise UsageError(
                f"the store in {self.path} was made with {record.backend}, not {self._backend}",
                do=f"open it with the backend {record.backend}, or choose another directory",
            )
        return record is not None

    def record(self) -> None:
        """Say that the files of the store are there. Call it when what they hold is durable."""
        if not self.is_recorded:
            what = f"cannot create the store in {self.path}"
            with storage_errors(what, do="choose another directory"):
                sync_directory(self.path)  # The names of those files, before that of the record.
                record = KvRecord(FORMAT, self._backend)
                write_durably(self.path / RECORD, msgspec.json.encode(record))
            self.is_recorded = True

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def read_record(path: Path) -> KvRecord | None:
    """Return what the store in a directory is; None if there is no store.

    Raises VersionError if a newer Headrace made it.
    """
    with storage_errors(f"cannot read {path / RECORD}", do="choose another directory"):
        try:
            stored = (path / RECORD).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return decode_record(stored, str(path / RECORD))


def decode_record(stored: bytes, where: str) -> KvRecord:
    """Return the record; `where` says where it lies. Raises VersionError if it is a newer one."""
    try:
        record = decode_json(stored, KvRecord)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{where} is damaged: {error}", do="restore the store from a copy"
        ) from error
    if record.format > FORMAT:
        raise VersionError(
            f"{where} has format {record.format}; this Headrace reads {FORMAT}",
            do="use the newer version of Headrace that made the store",
        )
    return record


def _lock_directory(path: Path) -> int:
    try:
        return lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"the store in {path} is open already, in this process or another",
            do="close it there, end that process, or let it serve the store to others",
        ) from error
