"""What the store on SlateDB says when its files are damaged, and how it ends."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from slatedb import uniffi as slatedb

from headrace.errors import DataError, StorageError, UsageError, VersionError
from headrace.stores.kv import slatedb_store
from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore
from headrace.testing.kv_conformance import batch_of, entries_of
from tests.stores.kv.test_lmdb_damage import LARGER_FROM, fill, filled

Damage = Callable[[Path], None]

DURABLE = 6


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def abandon(store: SlatedbKeyValueStore) -> None:
    """Let go of a store as a killed process does: nothing is flushed."""
    store._loop.run(lambda: store._db.shutdown_with_options(slatedb_store._LEAVE))
    store._free()


def make_table(store: SlatedbKeyValueStore) -> None:
    flush = slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE)
    store._loop.run(lambda: store._db.flush_with_options(flush))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was not closed, with one table and batches in its log."""
    store = SlatedbKeyValueStore(tmp_path / "store")
    for n in range(DURABLE):
        store.wait_durable(store.write(batch_of(**{f"k{n}": b"%d" % n * 500})))
        if n == 1:
            make_table(store)
    abandon(store)
    return tmp_path / "store"


def log_objects(path: Path) -> list[Path]:
    return sorted((path / "slatedb" / "wal").iterdir())


def read_all(path: Path) -> list[tuple[bytes, bytes]]:
    with closing(SlatedbKeyValueStore(path)) as store:
        return entries_of(store)


EXPECTED = [(b"k%d" % n, b"%d" % n * 500) for n in range(DURABLE)]


def test_what_is_durable_outlives_the_process(path: Path) -> None:
    for _ in range(3):
        assert read_all(path) == EXPECTED


@pytest.mark.parametrize("damage", [zero, tear, empty, Path.unlink])
@pytest.mark.parametrize("place", [-1, -2, -3])
def test_a_damaged_object_of_the_log_is_named(path: Path, damage: Damage, place: int) -> None:
    """All but an emptied one at the end are named; that one is missed by the batch it held."""
    damaged = log_objects(path)[place]
    damage(damaged)
    for _ in range(2):  # The first attempt changes nothing.
        with pytest.raises(DataError) as raised:
            SlatedbKeyValueStore(path)
        if damage is empty and place == -1:
            assert f"ends with batch {DURABLE - 1}, and {DURABLE} was" in str(raised.value)
        elif damage is empty:
            assert str(log_objects(path)[place + 1]) in str(raised.value)
        else:
            assert str(damaged) in str(raised.value)


@pytest.mark.parametrize("damage", [zero, tear, empty, Path.unlink])
def test_a_damaged_manifest_is_named(path: Path, damage: Damage) -> None:
    _, synced, _, _ = struct.unpack("<QQQQ", (path / "synced").read_bytes()[:32])
    manifests = sorted((path / "slatedb" / "manifest").iterdir())
    for later in manifests[synced:]:  # What was not synced may be damaged.
        damage(later)
    assert read_all(copied(path)) == EXPECTED
    damage(manifests[synced - 1])
    with pytest.raises(DataError) as raised:
        SlatedbKeyValueStore(path)
    assert str(manifests[synced - 1]) in str(raised.value)


def copied(path: Path) -> Path:
    return shutil.copytree(path, path.parent / "copy")


@pytest.mark.parametrize("damage", [zero, tear, empty, Path.unlink])
def test_a_damaged_table_is_no_wrong_answer(path: Path, damage: Damage) -> None:
    (table,) = (path / "slatedb" / "compacted").iterdir()
    damage(table)
    with pytest.raises((DataError, StorageError), match=r"store in .* (is damaged|failed)"):
        read_all(path)


@pytest.mark.parametrize("name", ["synced", "slatedb"])
def test_lost_files_are_no_empty_store(path: Path, name: str) -> None:
    (path / name).rename(path.parent / name)
    with pytest.raises(DataError, match=r"is missing; restore"):
        SlatedbKeyValueStore(path)


def test_a_damaged_record_of_what_is_synced_is_refused(path: Path) -> None:
    zero(path / "synced")
    with pytest.raises(DataError, match="synced is damaged"):
        SlatedbKeyValueStore(path)


def test_a_store_without_its_record_keeps_its_batches(path: Path) -> None:
    (path / "kv.json").unlink()
    assert read_all(path) == EXPECTED
    (path / "kv.json").unlink()
    (path / "synced").unlink()
    with pytest.raises(DataError, match=r"synced is missing; restore"):
        SlatedbKeyValueStore(path)


def test_a_store_whose_creation_was_cut_short_is_created(tmp_path: Path) -> None:
    abandon(SlatedbKeyValueStore(tmp_path))
    (tmp_path / "kv.json").unlink()
    (tmp_path / "synced").unlink()
    with closing(SlatedbKeyValueStore(tmp_path)) as store:
        store.write(batch_of(a=b"1"))
    assert read_all(tmp_path) == [(b"a", b"1")]


def test_a_newer_format_is_refused(path: Path) -> None:
    (path / "kv.json").write_text('{"format": 2, "backend": "slatedb"}')
    with pytest.raises(VersionError, match=r"kv.json has format 2; .* newer version"):
        SlatedbKeyValueStore(path)


def test_closing_the_store_ends_its_snapshots(tmp_path: Path) -> None:
    store = SlatedbKeyValueStore(tmp_path)
    store.write(batch_of(a=b"1", b=b"2"))
    snapshot = store.snapshot()
    scan = snapshot.scan(b"", None)
    store.close()
    with pytest.raises(UsageError, match="closed"):
        snapshot.get(b"a")
    with pytest.raises(UsageError, match="closed"):
        next(scan)


def test_garbage_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is kept short while the store is open, and what it held is in tables."""
    monkeypatch.setattr(slatedb_store, "_LOG_OBJECTS_MAX", 10)
    monkeypatch.setattr("headrace.stores.kv.slatedb_files._UNNEEDED_S", 0)
    store = SlatedbKeyValueStore(tmp_path)
    for n in range(60):
        store.wait_durable(store.write(batch_of(**{f"k{n:02}": b"%d" % n})))
        if n % 20 == 0:
            make_table(store)
    abandon(store)
    assert len(log_objects(tmp_path)) < 40
    assert read_all(tmp_path) == [(b"k%02d" % n, b"%d" % n) for n in range(60)]


@pytest.mark.long
def test_a_full_disk_keeps_exactly_what_is_durable(tmp_path: Path) -> None:
    durable, errors = fill(tmp_path, "slatedb", 200_000, 5_000)
    assert durable == LARGER_FROM
    assert "failed: " in errors[0]
    assert "failed earlier" in errors[1]
    assert read_all(tmp_path) == filled(durable, 5_000)


@pytest.mark.parametrize("value", [bytes(range(256)) * 5, b"", b"\0", bytes(100_000)])
def test_bytes_reach_slatedb_as_they_are(tmp_path: Path, value: bytes) -> None:
    """The binding would copy them one by one; see `copy_bytes_at_once`."""
    with closing(SlatedbKeyValueStore(tmp_path)) as store:
        store.write(batch_of(a=value, b=value[::-1]))
        assert entries_of(store) == [(b"a", value), (b"b", value[::-1])]
