"""What the store on LMDB says when its files are damaged, or its disk refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest

from headrace.errors import DataError, StorageError, UsageError, VersionError
from headrace.stores.kv import lmdb_store
from headrace.stores.kv.contract import WriteBatch
from headrace.stores.kv.lmdb_store import SNAPSHOTS_MAX, LmdbKeyValueStore
from headrace.testing.kv_conformance import batch_of, entries_of

PAGE = 4096
ENTRIES = [(b"%05d" % n, bytes([n % 251]) * (100 if n % 10 else 20_000)) for n in range(300)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store of many pages."""
    with closing(LmdbKeyValueStore(tmp_path / "store")) as store:
        for begin in range(0, len(ENTRIES), 50):
            batch = WriteBatch()
            batch.put_many(ENTRIES[begin : begin + 50])
            store.write(batch)
    return tmp_path / "store"


def read_all(path: Path) -> list[tuple[bytes, bytes]]:
    with closing(LmdbKeyValueStore(path)) as store:
        return entries_of(store)


def test_an_undamaged_store_is_read(path: Path) -> None:
    assert read_all(path) == ENTRIES


@pytest.mark.parametrize("size", [None, 0])
def test_a_lost_file_is_no_empty_store(path: Path, size: int | None) -> None:
    if size is None:
        (path / "data.mdb").unlink()
    else:
        os.truncate(path / "data.mdb", size)
    with pytest.raises(DataError, match=r"data.mdb is missing or empty; restore"):
        LmdbKeyValueStore(path)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_file_without_its_end_is_refused(path: Path, share: float) -> None:
    data = path / "data.mdb"
    size = int(data.stat().st_size * share)
    os.truncate(data, size)
    for _ in range(2):  # The first attempt changes nothing.
        with pytest.raises(DataError, match=r"data.mdb (is damaged|has lost its end)"):
            LmdbKeyValueStore(path)
        assert data.stat().st_size == size


def test_a_file_may_end_before_pages_that_nobody_uses(path: Path) -> None:
    """LMDB does not write a page that a transaction takes and frees again."""
    with closing(LmdbKeyValueStore(path)) as store:
        store.write(_deletion([key for key, _ in ENTRIES[10:]]))
        for n in range(10):
            store.write(batch_of(a=b"%d" % n))
    data = path / "data.mdb"
    used = _last_used_page(data)
    assert used * PAGE < data.stat().st_size - 10 * PAGE
    os.truncate(data, used * PAGE)
    assert read_all(path) == [*ENTRIES[:10], (b"a", b"9")]
    assert read_all(path) == [*ENTRIES[:10], (b"a", b"9")]


def _deletion(keys: list[bytes]) -> WriteBatch:
    batch = WriteBatch()
    for key in keys:
        batch.delete(key)
    return batch


def _last_used_page(data: Path) -> int:
    """Return the page after which the file can end: bisect by opening copies."""
    low, high = 2, data.stat().st_size // PAGE
    whole = data.read_bytes()
    copy = data.parent.parent / "copy"
    copy.mkdir()
    (copy / "kv.json").write_bytes((data.parent / "kv.json").read_bytes())
    while low < high:
        middle = (low + high) // 2
        (copy / "data.mdb").write_bytes(whole[: middle * PAGE])
        try:
            read_all(copy)
        except DataError:
            low = middle + 1
        else:
            high = middle
    return low


def test_no_zero_filled_page_goes_unnoticed(path: Path) -> None:
    """Each page but the two that begin the file either matters, and then says so, or is free."""
    data = path / "data.mdb"
    whole = data.read_bytes()
    found = 0
    for page in range(2, len(whole) // PAGE):
        damaged = bytearray(whole)
        damaged[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
        data.write_bytes(damaged)
        try:
            assert read_all(path) == ENTRIES, page
        except DataError:
            found += 1
    assert found > len(whole) // PAGE // 2


def test_a_flipped_bit_in_a_value_is_found(path: Path) -> None:
    data = path / "data.mdb"
    whole = data.read_bytes()
    at = whole.index(bytes([7]) * 50) + 20
    data.write_bytes(whole[:at] + b"\x06" + whole[at + 1 :])
    with (
        closing(LmdbKeyValueStore(path)) as store,
        store.snapshot() as snapshot,
    ):
        for read in (
            lambda: snapshot.get(b"00007"),
            lambda: snapshot.get_many([b"00007"]),
            lambda: list(snapshot.scan(b"", None)),
        ):
            with pytest.raises(DataError, match="value of key 3030303037 has another checksum"):
                read()
        assert snapshot.get(b"00008") == ENTRIES[8][1], "the others can be read"


def test_zero_filled_beginnings_are_refused(path: Path) -> None:
    data = path / "data.mdb"
    whole = data.read_bytes()
    data.write_bytes(bytes(len(whole)))
    with pytest.raises(DataError, match=r"data.mdb has no head"):
        LmdbKeyValueStore(path)


def test_a_lost_record_is_noticed(path: Path) -> None:
    (path / "kv.json").unlink()
    with pytest.raises(DataError, match=r"lost the file kv.json; restore"):
        LmdbKeyValueStore(path)


def test_a_store_whose_creation_was_cut_short_is_created(path: Path, tmp_path: Path) -> None:
    with closing(LmdbKeyValueStore(tmp_path / "new")):
        pass
    (tmp_path / "new" / "kv.json").unlink()
    with closing(LmdbKeyValueStore(tmp_path / "new")) as store:
        store.write(batch_of(a=b"1"))
    assert read_all(tmp_path / "new") == [(b"a", b"1")]


def test_a_newer_format_is_refused(path: Path) -> None:
    (path / "kv.json").write_text('{"format": 2, "backend": "lmdb"}')
    with pytest.raises(VersionError, match=r"kv.json has format 2; .* newer version"):
        LmdbKeyValueStore(path)


def test_a_damaged_record_is_refused(path: Path) -> None:
    (path / "kv.json").write_bytes(bytes(30))
    with pytest.raises(DataError, match=r"kv.json is damaged"):
        LmdbKeyValueStore(path)


def test_a_full_map_fails_until_the_store_is_opened_with_a_larger_one(tmp_path: Path) -> None:
    with closing(LmdbKeyValueStore(tmp_path, map_bytes=1 << 20)) as store:
        last = store.write(batch_of(a=b"1"))
        with pytest.raises(StorageError, match=r"full at 1048576 bytes; .* larger map_bytes"):
            store.write(batch_of(a=b"2", b=bytes(2 << 20)))
        with pytest.raises(StorageError, match="failed earlier"):
            store.write(batch_of(a=b"3"))
        with pytest.raises(StorageError, match="failed earlier"):
            store.wait_durable(last)
        assert entries_of(store) == [(b"a", b"1")], "reads go on"
    with closing(LmdbKeyValueStore(tmp_path)) as store:
        assert entries_of(store) == [(b"a", b"1")]
        store.write(batch_of(b=bytes(2 << 20)))


def test_too_many_snapshots_are_refused(tmp_path: Path) -> None:
    with closing(LmdbKeyValueStore(tmp_path)) as store:
        held = [store.snapshot() for _ in range(SNAPSHOTS_MAX)]
        with pytest.raises(StorageError, match="open snapshots; close"):
            store.snapshot()
        held.pop().close()
        store.snapshot().close()
        store.write(batch_of(a=b"1"))


def test_closing_the_store_ends_its_snapshots(tmp_path: Path) -> None:
    store = LmdbKeyValueStore(tmp_path)
    store.write(batch_of(a=b"1", b=b"2"))
    snapshot = store.snapshot()
    scan = snapshot.scan(b"", None)
    store.close()
    with pytest.raises(UsageError, match="closed"):
        snapshot.get(b"a")
    with pytest.raises(UsageError, match="closed"):
        next(scan)


LARGER_FROM = 100
"""From this batch on, values are ten times as large: SlateDB writes a file for each."""

FILLS_THE_DISK = """
import resource, signal, sys
from pathlib import Path
from headrace.errors import StorageError
from headrace.stores.kv.contract import WriteBatch
from headrace.stores.kv.kv_location import open_kv

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_kv(Path(sys.argv[1]), sys.argv[2])
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
durable = 0
errors = []
for number in range(1000):
    batch = WriteBatch()
    repeats = int(sys.argv[4]) * (1 if number < int(sys.argv[5]) else 10)
    batch.put(b"%06d" % number, b"%06d" % number * repeats)
    try:
        store.wait_durable(store.write(batch))
        durable += 1
    except StorageError as error:
        errors.append(str(error))
        if len(errors) == 2:
            break
print(durable, *errors, sep="\\n")
"""


def filled(durable: int, repeats: int) -> list[tuple[bytes, bytes]]:
    return [
        (b"%06d" % n, b"%06d" % n * repeats * (1 if n < LARGER_FROM else 10))
        for n in range(durable)
    ]


def fill(path: Path, backend: str, limit: int, repeats: int) -> tuple[int, list[str]]:
    command = [
        *(sys.executable, "-c", FILLS_THE_DISK),
        *(str(path), backend, str(limit), str(repeats), str(LARGER_FROM)),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    durable, *errors = run.stdout.splitlines()
    return int(durable), errors


@pytest.mark.long
def test_a_full_disk_keeps_exactly_what_is_durable(tmp_path: Path) -> None:
    durable, errors = fill(tmp_path, "lmdb", 200_000, 100)
    assert durable > 10
    assert "MiB are free there" in errors[0]
    assert "failed earlier" in errors[1]
    assert read_all(tmp_path) == filled(durable, 100)


@pytest.mark.parametrize("failing", ["commit", "sync"])
def test_a_failed_sync_is_told_to_every_later_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:  # proves G25
    with closing(LmdbKeyValueStore(tmp_path)) as store:
        durable = store.write(batch_of(a=b"1"))
        store.wait_durable(durable)
        last = store.write(batch_of(a=b"2"))
        environment = _FailingEnvironment(store._env, failing)
        monkeypatch.setattr(store, "_env", environment)
        attempts: dict[str, Callable[[], object]] = {
            "commit": lambda: store.write(batch_of(a=b"3")),
            "sync": lambda: store.wait_durable(last),
        }
        with pytest.raises(StorageError, match="Input/output error"):
            attempts[failing]()
        environment.failing = ""
        with pytest.raises(StorageError, match="failed earlier"):
            store.write(batch_of(a=b"4"))
        with pytest.raises(StorageError, match="failed earlier"):
            store.wait_durable(last)
        store.wait_durable(durable)
        assert store.durable_sequence == durable
    assert store.durable_sequence == durable, "a sync after one that failed proves nothing"
    with closing(LmdbKeyValueStore(tmp_path)) as store:
        assert entries_of(store) == [(b"a", b"2")]


class _FailingEnvironment:
    def __init__(self, environment: lmdb.Environment, failing: str) -> None:
        self._environment: Any = environment
        self.failing = failing

    def begin(self, **options: Any) -> Any:
        if self.failing == "commit":
            raise lmdb.DiskError("mdb_txn_commit: Input/output error")
        return self._environment.begin(**options)

    def sync(self, force: bool) -> None:
        if self.failing == "sync":
            raise lmdb.Error("mdb_env_sync: Input/output error")
        self._environment.sync(force)

    def __getattr__(self, name: str) -> object:
        return getattr(self._environment, name)


def test_closing_the_store_makes_everything_durable(tmp_path: Path) -> None:
    store = LmdbKeyValueStore(tmp_path / "store")
    batch = WriteBatch()
    batch.put(b"a", b"1")
    sequence = store.write(batch)
    assert store.durable_sequence < sequence
    store.close()
    assert store.durable_sequence == sequence


def test_a_store_that_was_refused_is_locked_no_more(tmp_path: Path) -> None:
    LmdbKeyValueStore(tmp_path).close()
    record = tmp_path / "kv.json"
    stored = record.read_bytes()
    record.write_bytes(b"?")
    with pytest.raises(DataError, match="is damaged"):
        LmdbKeyValueStore(tmp_path)
    record.write_bytes(stored)
    LmdbKeyValueStore(tmp_path).close()


def test_a_scan_goes_on_at_the_very_next_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_store, "_CHUNK_ENTRIES", 1)
    keys = [b"a", b"a\0", b"a\0\0", b"a\0\1", b"b"]
    with closing(LmdbKeyValueStore(tmp_path / "store")) as store:
        batch = WriteBatch()
        batch.put_many((key, b"1") for key in keys)
        store.write(batch)
        with store.snapshot() as snapshot:
            assert [key for key, _ in snapshot.scan(b"", None)] == keys
            assert [key for key, _ in snapshot.scan(b"", None, reverse=True)] == keys[::-1]
