"""Which store lies where."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from headrace.errors import StorageError, UsageError
from headrace.stores.kv.kv_location import open_kv
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore
from headrace.testing.kv_conformance import batch_of, entries_of


def test_a_new_directory_is_lmdbs_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    with closing(open_kv(tmp_path / "a")) as store:
        assert isinstance(store, LmdbKeyValueStore)
    with closing(open_kv(tmp_path / "b", "slatedb")) as store:
        assert isinstance(store, SlatedbKeyValueStore)


@pytest.mark.parametrize("backend", ["lmdb", "slatedb"])
def test_a_directory_keeps_its_backend(tmp_path: Path, backend: str) -> None:
    with closing(open_kv(str(tmp_path), backend)) as store:
        store.write(batch_of(a=b"1"))
    with closing(open_kv(f"file://{tmp_path}")) as store:
        assert entries_of(store) == [(b"a", b"1")]
    other = {"lmdb": "slatedb", "slatedb": "lmdb"}[backend]
    with pytest.raises(UsageError, match=f"was made with {backend}, not {other}; open it with"):
        open_kv(tmp_path, other)


def test_memory_is_new_every_time() -> None:
    with closing(open_kv("memory://")) as store:
        assert isinstance(store, MemoryKeyValueStore)
        store.write(batch_of(a=b"1"))
    with closing(open_kv("memory://", "memory")) as store:
        assert entries_of(store) == []


@pytest.mark.parametrize(
    ("location", "backend", "message"),
    [
        ("ftp://somewhere", None, "ftp://somewhere is not the location .*; give a directory"),
        ("memory://", "lmdb", "backend lmdb cannot keep memory://; use memory"),
        ("here", "memory", "backend memory cannot keep here; use lmdb or slatedb"),
        ("here", "rocksdb", "no backend 'rocksdb' .*; choose from lmdb, slatedb, memory"),
        ("s3://", None, "names no bucket"),
    ],
)
def test_a_location_that_does_not_fit_is_refused(
    location: str, backend: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open_kv(location, backend)
    assert not Path("here").exists()


def test_only_s3_takes_options(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no options"):
        open_kv(tmp_path, region="here")


@pytest.mark.parametrize("backend", ["lmdb", "slatedb"])
def test_another_process_is_told_who_has_the_store(tmp_path: Path, backend: str) -> None:
    opens = (
        "import sys\n"
        "from headrace.errors import UsageError\n"
        "from headrace.stores.kv.kv_location import open_kv\n"
        "try:\n"
        "    open_kv(sys.argv[1])\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    with closing(open_kv(tmp_path, backend)):
        command = [sys.executable, "-c", opens, str(tmp_path)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith(f"the store in {tmp_path} is open already")
    assert "; close it there, end that process" in run.stdout


@pytest.mark.parametrize("backend", ["lmdb", "slatedb"])
def test_a_file_is_no_directory(tmp_path: Path, backend: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot open the store in .*file"):
        open_kv(tmp_path / "file", backend)


READS = """
import os, sys
from headrace.errors import HeadraceError
from headrace.stores.kv.kv_location import open_kv
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    open_kv(sys.argv[1], sys.argv[2])
except HeadraceError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("backend", ["lmdb", "slatedb"])
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, backend: str) -> None:
    open_kv(tmp_path / "store", backend).close()
    for each in (tmp_path, *tmp_path.parents):
        if each != Path("/"):
            each.chmod(each.stat().st_mode | 0o555)
    for each in tmp_path.rglob("*"):
        each.chmod(0o555 if each.is_dir() else 0o444)
    command = [sys.executable, "-c", READS, str(tmp_path / "store"), backend]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith("StorageError")
    assert str(tmp_path / "store") in run.stdout
