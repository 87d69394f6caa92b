"""What the ledger keeps on disk: one LMDB environment with a table for each kind of thing.

    results    call key            -> cost and result; written once
    contents   content key         -> the first call key that has a result
    intents    call key            -> Intent; only calls without a result
    totals     generation, stage   -> StageTotals
    about      "format"            -> the number of this format

LMDB finds a result with one search of a tree in mapped memory, and opening it costs the same for
any number of results. A transaction is durable when it has committed (two syncs). One thread
writes; any number of threads read.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import lmdb
import msgspec

from headrace.decoders import decode_msgpack
from headrace.errors import DataError, StorageError, UsageError, VersionError
from headrace.files import lock, make_directory, storage_errors
from headrace.pipeline.ledger.keys import CallKey, content_key, stage_prefix
from headrace.pipeline.ledger.state import Intent, LedgerChanges
from headrace.pipeline.ledger.totals import CallFigures, Nanos, StageTotals

FORMAT = 1
MAP_BYTES = 1 << 40
"""The ledger can grow to this size. LMDB reserves addresses for it, and no memory or disk."""

_TABLES = (b"results", b"contents", b"intents", b"totals", b"about")
COST = struct.Struct("<q")
_DAMAGES = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)
_DO = "free some space on that disk, or mend it; then start the pipeline again"


class LedgerStore:
    """The tables. Only one thread writes."""

    def __init__(self, path: Path, generation: str) -> None:
        self.path = path
        self.generation = generation
        with storage_errors(f"cannot open the ledger in {path}", do="choose another directory"):
            make_directory(path)
            self._lock = self._lock_directory()
        try:
            with _lmdb_errors(path):
                self._env = lmdb.open(
                    str(path), map_size=MAP_BYTES, max_dbs=len(_TABLES), max_readers=1024
                )
                opened = [self._env.open_db(name) for name in _TABLES]
                self.results, self.contents, self.intents, self.totals, self._about = opened
            self._check_format()
        except BaseException:
            os.close(self._lock)
            raise

    def _lock_directory(self) -> int:
        try:
            return lock(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process has the ledger in {self.path} open",
                do="wait until it ends, or end it",
            ) from error

    def _check_format(self) -> None:
        with self.write() as txn:
            found = txn.lmdb.get(b"format", db=self._about)
            if found is None:
                txn.lmdb.put(b"format", str(FORMAT).encode(), db=self._about)
            elif int(found) != FORMAT:
                raise VersionError(
                    f"the ledger in {self.path} has format {int(found)}, not {FORMAT}",
                    do="use the newer version of Headrace that wrote it",
                )

    def close(self) -> None:
        self._env.close()
        os.close(self._lock)

    @contextmanager
    def write(self) -> Iterator[StoreTransaction]:
        """Yield a transaction that commits, durably, at the end of the block."""
        with _lmdb_errors(self.path), self._env.begin(write=True) as txn:
            yield StoreTransaction(self, txn)

    def find_results(self, keys: Sequence[CallKey], bytes_max: int) -> list[bytes | None]:
        """Return the result of each call, or None, until the results exceed `bytes_max`."""
        with self._read() as txn, txn.cursor(db=self.results) as cursor:
            found = cast(dict[CallKey, bytes], dict(cursor.getmulti(keys)))
        if not found:
            return [None] * len(keys)
        results: list[bytes | None] = []
        size = 0
        for key in keys:
            if (stored := found.get(key)) is not None:
                size += len(stored)
                if size > bytes_max and results:
                    break
                stored = stored[COST.size :]
            results.append(stored)
        return results

    def load(self) -> tuple[list[tuple[CallKey, Intent]], dict[str, StageTotals]]:
        """Return the intents and totals of the generation. Takes no time for results."""
        intents: list[tuple[CallKey, Intent]] = []
        with self._read() as txn:
            totals = _load_totals(txn, self.totals, self.generation)
            for stage in totals:
                prefix = stage_prefix(self.generation, stage)
                intents += _load_intents(txn, self.intents, prefix)
        return intents, totals

    def forget_generation(self) -> None:
        """Remove everything about the generation, for good. LMDB uses the space again."""
        _, totals = self.load()
        for stage in totals:
            with self.write() as txn:
                txn.forget(stage)

    @contextmanager
    def _read(self) -> Iterator[lmdb.Transaction]:
        with _lmdb_errors(self.path), self._env.begin() as txn:
            yield txn


class StoreTransaction:
    """What the state reads and writes in one transaction: see `state.Results`."""

    def __init__(self, store: LedgerStore, txn: lmdb.Transaction) -> None:
        self.lmdb = txn
        self._store = store

    def find_result(self, key: CallKey) -> bytes | None:
        stored = self.lmdb.get(key, db=self._store.results)
        return None if stored is None else bytes(stored[COST.size :])

    def find_equal(self, key: CallKey) -> CallKey | None:
        found = self.lmdb.get(content_key(key), db=self._store.contents)
        return None if found is None else CallKey(bytes(found))

    def put_result(self, key: CallKey, cost: Nanos, result: bytes) -> bool:
        stored = COST.pack(cost) + result
        if not self.lmdb.put(key, stored, overwrite=False, db=self._store.results):
            return False
        self.lmdb.put(content_key(key), key, overwrite=False, db=self._store.contents)
        return True

    def put_changes(self, changes: LedgerChanges) -> None:
        for key, intent in changes.intents.items():
            if intent is None:
                self.lmdb.delete(key, db=self._store.intents)
            else:
                self.lmdb.put(key, msgspec.msgpack.encode(intent), db=self._store.intents)
        for stage, totals in changes.totals.items():
            name = totals_key(self._store.generation, stage)
            self.lmdb.put(name, msgspec.msgpack.encode(totals), db=self._store.totals)

    def forget(self, stage: str) -> None:
        """Remove everything about a stage of the generation."""
        store = self._store
        self._forget_calls(stage, store.results, store.contents, store.intents)
        self.lmdb.delete(totals_key(store.generation, stage), db=store.totals)

    def forget_results(self, stage: str) -> None:
        """Remove the results of a stage. What they cost, and what is in doubt, still counts."""
        store = self._store
        self._forget_calls(stage, store.results, store.contents)
        name = totals_key(store.generation, stage)
        if (stored := self.lmdb.get(name, db=store.totals)) is not None:
            totals = decode_msgpack(stored, StageTotals)
            kept = msgspec.structs.replace(totals, calls=totals.calls - totals.results, results=0)
            self.lmdb.put(name, msgspec.msgpack.encode(kept), db=store.totals)

    def _forget_calls(self, stage: str, *tables: lmdb._Database) -> None:
        begin = stage_prefix(self._store.generation, stage)
        for table in tables:
            with self.lmdb.cursor(db=table) as cursor:
                found = cursor.set_range(begin)
                while found and bytes(cursor.key()).startswith(begin):
                    found = cursor.delete()


def read_totals(path: Path, generation: str) -> dict[str, StageTotals]:
    """Return the totals of a ledger that another process may have open: see `read_figures`."""
    return {stage: each.totals for stage, each in read_figures(path, generation).items()}


def read_figures(path: Path, generation: str) -> dict[str, CallFigures]:
    """Return what became of the calls of a ledger that another process may have open.

    If no process has it open, the calls that are under way are in doubt too. A process that has it
    open itself must ask its `LedgerActor` instead: LMDB's locks are those of a process.
    """
    if not (path / "data.mdb").exists():
        return {}
    with _lmdb_errors(path), lmdb.open(str(path), readonly=True, max_dbs=len(_TABLES)) as env:
        tables = [env.open_db(name, create=False) for name in (b"totals", b"intents")]
        with env.begin() as txn:
            totals = _load_totals(txn, tables[0], generation)
            found = {}
            for stage, each in totals.items():
                prefix = stage_prefix(generation, stage)
                intents = [intent for _, intent in _load_intents(txn, tables[1], prefix)]
                in_doubt = sum(intent.is_in_doubt for intent in intents)
                found[stage] = CallFigures(each, len(intents) - in_doubt, in_doubt)
            return found


def list_ledger(path: Path) -> list[tuple[str, str, StageTotals]]:
    """Return (generation, stage, totals) of all that a ledger holds: see `read_figures`."""
    if not (path / "data.mdb").exists():
        return []
    found = []
    with _lmdb_errors(path), lmdb.open(str(path), readonly=True, max_dbs=len(_TABLES)) as env:
        table = env.open_db(b"totals", create=False)
        with env.begin() as txn, txn.cursor(db=table) as cursor:
            for key, value in cursor:
                length = int.from_bytes(bytes(key)[:2], "big")
                generation, stage = bytes(key)[2 : 2 + length], bytes(key)[2 + length :]
                totals = decode_msgpack(value, StageTotals)
                found.append((generation.decode(), stage.decode(), totals))
    return found


def _load_totals(
    txn: lmdb.Transaction, table: lmdb._Database, generation: str
) -> dict[str, StageTotals]:
    begin = totals_key(generation, "")
    totals = {}
    with txn.cursor(db=table) as cursor:
        cursor.set_range(begin)
        for key, value in cursor:
            if not bytes(key).startswith(begin):
                break
            stage = bytes(key)[len(begin) :].decode()
            totals[stage] = decode_msgpack(value, StageTotals)
    return totals


def _load_intents(
    txn: lmdb.Transaction, table: lmdb._Database, begin: bytes
) -> Iterator[tuple[CallKey, Intent]]:
    with txn.cursor(db=table) as cursor:
        cursor.set_range(begin)
        for key, value in cursor:
            if not bytes(key).startswith(begin):
                break
            yield CallKey(bytes(key)), decode_msgpack(value, Intent)


def totals_key(generation: str, stage: str) -> bytes:
    encoded = generation.encode()
    return len(encoded).to_bytes(2, "big") + encoded + stage.encode()


@contextmanager
def _lmdb_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise DataError(
            f"the ledger in {path} is damaged: {error}", do="restore the directory from a copy"
        ) from error
    except lmdb.Error as error:
        raise StorageError(f"the ledger in {path} failed: {error}", do=_DO) from error
