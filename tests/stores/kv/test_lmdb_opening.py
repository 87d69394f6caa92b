"""What the store on LMDB syncs when it is opened and closed, and for whom its end waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest

from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.testing.kv_conformance import batch_of
from tests.stores.kv.crash.test_slatedb_power import WatchedSyncs

MOMENT_S = 0.2


class WatchedEnvironment:
    """An environment that tells what its last sync covered, and can be looked at while it works."""

    def __init__(self, path: str, **options: Any) -> None:
        self._environment: Any = lmdb_open(path, **options)
        self._data = Path(path) / "data.mdb"
        self.synced = b""
        """What the file held at the last sync."""
        self.during: dict[str, Callable[[], object]] = {}
        """Called in the middle of these."""
        self.is_closed = threading.Event()

    def begin(self, **options: Any) -> Any:
        self.during.get("begin", bool)()
        return self._environment.begin(**options)

    def sync(self, force: bool) -> None:
        self.during.get("sync", bool)()
        self._environment.sync(force)
        self.synced = self._data.read_bytes()

    def close(self) -> None:
        self.is_closed.set()
        self._environment.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._environment, name)


lmdb_open = lmdb.open


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> list[WatchedEnvironment]:
    """The environments that were opened."""
    opened: list[WatchedEnvironment] = []

    def open_watched(path: str, **options: Any) -> WatchedEnvironment:
        opened.append(WatchedEnvironment(path, **options))
        return opened[-1]

    monkeypatch.setattr(lmdb, "open", open_watched)
    return opened


# proves G23
def test_what_a_store_begins_and_ends_with_is_synced(
    tmp_path: Path, watched: list[WatchedEnvironment]
) -> None:
    data = tmp_path / "store" / "data.mdb"
    for number in range(3):
        with closing(LmdbKeyValueStore(tmp_path / "store")) as store:
            assert watched[-1].synced == data.read_bytes()
            store.write(batch_of(a=b"%d" % number))
            assert watched[-1].synced != data.read_bytes()
        assert watched[-1].synced == data.read_bytes()


def test_a_new_store_is_recorded_when_its_file_is_durable(
    tmp_path: Path, watched: list[WatchedEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without the file would be a lost store."""
    data = tmp_path / "store" / "data.mdb"
    syncs = WatchedSyncs(tmp_path / "store")
    fsync, rename = os.fsync, os.rename
    recorded: list[str] = []

    def watch_fsync(descriptor: int) -> None:
        syncs.fsync(descriptor)
        fsync(descriptor)

    def watch_rename(source: str, target: Path) -> None:
        recorded.append(target.name)
        assert syncs.survives(data)
        assert watched[-1].synced == data.read_bytes()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "rename", watch_rename)
    LmdbKeyValueStore(tmp_path / "store").close()
    assert recorded == ["kv.json"]


@pytest.mark.parametrize("call", ["write", "wait_durable", "snapshot"])
def test_a_store_is_closed_when_nobody_is_at_work_in_it(
    tmp_path: Path, watched: list[WatchedEnvironment], call: str
) -> None:
    """LMDB brings the process down if an environment is closed while it is used."""
    store = LmdbKeyValueStore(tmp_path)
    last = store.write(batch_of(a=b"1"))
    ending = threading.Thread(target=store.close)

    def end() -> None:
        watched[-1].during.clear()
        ending.start()
        assert not watched[-1].is_closed.wait(MOMENT_S)

    watched[-1].during = {"sync" if call == "wait_durable" else "begin": end}
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: store.write(batch_of(b=b"1")),
        "wait_durable": lambda: store.wait_durable(last),
        "snapshot": store.snapshot,
    }
    calls[call]()
    ending.join()
    assert watched[-1].is_closed.is_set()
    assert watched[-1].synced == (tmp_path / "data.mdb").read_bytes()


def test_a_store_that_cannot_be_opened_leaves_no_environment(
    tmp_path: Path, watched: list[WatchedEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB refuses to open a file twice in one process."""

    def fail(store: LmdbKeyValueStore) -> None:
        raise RuntimeError("it fails")

    with monkeypatch.context() as failing:
        failing.setattr(LmdbKeyValueStore, "_begin", fail)
        with pytest.raises(RuntimeError, match="it fails"):
            LmdbKeyValueStore(tmp_path)
    assert watched[-1].is_closed.is_set()
    LmdbKeyValueStore(tmp_path).close()
