"""A power failure at any moment leaves the store on SlateDB with a whole prefix of its batches.

The test watches which files and folders are synced. What was not may be whole, zero-filled, torn,
empty or missing afterwards.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.stores.kv import slatedb_store
from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore
from headrace.testing.crash import chosen_seed
from headrace.testing.kv_conformance import batch_of, entries_of
from tests.kinds import seeds
from tests.stores.kv.crash.test_lmdb_power import Entries, random_batch
from tests.stores.kv.test_slatedb_damage import abandon, make_table, tear

BATCHES = 12
RECORD = "synced"


@dataclass
class WatchedSyncs:
    """Which files and names below a folder survive a power failure."""

    root: Path
    files: set[tuple[int, int]] = field(default_factory=set)
    """Files whose content was synced, by what stays if they are renamed and not written."""
    names: set[Path] = field(default_factory=set)
    """Paths whose folder was synced when they were there."""
    records: list[bytes] = field(default_factory=list)
    """What the record of what is synced held, since it was synced."""

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self.names |= set(path.iterdir())
        else:
            self.files.add(_identity(os.fstat(descriptor)))

    def survives(self, path: Path) -> bool:
        return all(each in self.names for each in self._names(path))

    def _names(self, path: Path) -> list[Path]:
        return [each for each in (path, *path.parents) if self.root in each.parents]

    def fail(self, to: Path, chance: random.Random) -> None:
        """Copy the folder as it may be after a power failure."""
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        kinds = ["whole", "zero", "torn", "empty", "missing"]
        for path in sorted(self.root.rglob("*")):
            target = to / path.relative_to(self.root)
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            try:
                content = path.read_bytes()
                is_synced = path.name == RECORD or _identity(path.stat()) in self.files
            except FileNotFoundError:
                continue  # SlateDB renamed it.
            kind = "whole" if is_synced else chance.choice(kinds)
            if kind == "missing" or (not self.survives(path) and chance.random() < 0.5):
                continue
            size = len(content)
            if path.name == RECORD:  # Within a sector: some content that it had.
                content = chance.choice(self.records)
            elif kind in ("torn", "zero", "empty"):
                keep = {"torn": chance.randrange(size + 1), "zero": 0, "empty": 0}[kind]
                content = content[:keep] + bytes(0 if kind == "empty" else size - keep)
            target.write_bytes(content)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


@pytest.mark.parametrize("seed", seeds(4, deep=150))
def test_a_power_failure_leaves_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:  # proves G23
    chance = random.Random(chosen_seed(seed))
    root = tmp_path / "store"
    watched = WatchedSyncs(root)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        watched.fsync(descriptor)
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr("headrace.files.os.fsync", fsync)
        store = SlatedbKeyValueStore(root)
        watched.records.append((root / RECORD).read_bytes())
        states: list[Entries] = [{}]
        durable = 0
        entries: Entries = {}
        for number in range(BATCHES):
            last = store.write(random_batch(chance, number, entries))
            states.append(dict(entries))
            if chance.random() < 0.25:
                make_table(store)
            if chance.random() < 0.5:
                store.wait_durable(last)
                durable = number + 1
                watched.records.append((root / RECORD).read_bytes())
            if chance.random() < 0.4:
                watched.fail(tmp_path / "failed", chance)
                check(tmp_path / "failed", states, durable)
        if chance.random() < 0.5:
            store.close()
            durable = len(states) - 1
            watched.records.append((root / RECORD).read_bytes())
        else:
            abandon(store)
    watched.fail(tmp_path / "failed", chance)
    check(tmp_path / "failed", states, durable)


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedSyncs:
    """What is synced below the folder `store`."""
    watched = WatchedSyncs(tmp_path / "store")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        watched.fsync(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return watched


def test_a_new_store_is_recorded_when_its_files_are_durable(
    syncs: WatchedSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without the files would be a lost store."""
    rename = os.rename
    recorded: list[str] = []

    def watch_rename(source: str, target: Path) -> None:
        recorded.append(target.name)
        for path in (syncs.root / RECORD, *(syncs.root / "slatedb" / "manifest").iterdir()):
            assert syncs.survives(path), path
            assert _identity(path.stat()) in syncs.files, path
        rename(source, target)

    monkeypatch.setattr(os, "rename", watch_rename)
    SlatedbKeyValueStore(syncs.root).close()
    assert recorded == ["kv.json"]


def test_what_nobody_acknowledged_is_removed_durably_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an object of the log came back, it could follow the new ones that have lower numbers."""
    folders = [tmp_path / "store" / "slatedb" / name for name in ("wal", "manifest")]
    store = SlatedbKeyValueStore(tmp_path / "store")
    kept = [set(folder.iterdir()) for folder in folders]
    for number in range(4):
        store.write(batch_of(a=b"%d" % number))
        store._loop.run(lambda: store._db.flush_with_options(slatedb_store._FLUSH_LOG))
    make_table(store)
    abandon(store)
    added = [
        sorted(set(folder.iterdir()) - names) for folder, names in zip(folders, kept, strict=True)
    ]
    assert len(added[0]) == 4
    assert added[1]
    tear(added[0][0])
    synced: dict[Path, set[Path]] = {}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path in folders:
            synced.setdefault(path, set(path.iterdir()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    SlatedbKeyValueStore(tmp_path / "store").close()
    assert [synced[folder] for folder in folders] == kept, "what the first syncs cover"


def check(path: Path, states: list[Entries], durable: int) -> None:
    for _ in range(2):
        with closing(SlatedbKeyValueStore(path)) as store:
            found = dict(entries_of(store))
        number = int(found.get(b"number", b"-1")) + 1
        assert found == states[number], "no batch is there in part"
        assert number >= durable, "what is durable is there"
