from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NotFoundError, StorageError
from headrace.storage import Objects, open_objects

# Runs `action` on the objects of a directory in a process whose syncs of files do `on_sync` first.
WRITER = """
import os, resource, signal, stat, sys
from headrace.errors import StorageError
from headrace.storage import open_objects

objects = open_objects(sys.argv[1])
sync = os.fsync

def observed(descriptor):
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        {on_sync}
    sync(descriptor)

os.fsync = observed
{action}
"""


def writer(directory: Path, action: str, on_sync: str = "pass") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER.format(action=action, on_sync=on_sync), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def incoming(directory: Path) -> list[Path]:
    return list((directory / ".incoming").iterdir())


@pytest.fixture
def calls(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls of the file system in order; a file without a name is `*`."""
    seen: list[str] = []
    sync, link, replace = os.fsync, os.link, os.replace

    def name(path: str) -> str:
        relative = os.path.relpath(path, directory)
        return "*" if relative.startswith(".incoming/") else relative

    def observed_sync(descriptor: int) -> None:
        seen.append(f"sync {name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        sync(descriptor)

    def observed_link(source: Path, target: Path, **options: Any) -> None:
        seen.append(f"link {name(str(target))}")
        link(source, target, **options)

    def observed_replace(source: Path, target: Path) -> None:
        seen.append(f"replace {name(str(target))}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", observed_sync)
    monkeypatch.setattr(os, "link", observed_link)
    monkeypatch.setattr(os, "replace", observed_replace)
    return seen


def test_a_new_root_is_made_durable_with_all_its_parents(directory: Path, calls: list[str]) -> None:
    open_objects(str(directory / "x" / "y"))
    assert calls == ["sync x", "sync .", "sync .."]


def test_an_object_is_synced_before_it_gets_its_name_and_its_directory_after(
    directory: Path, calls: list[str]
) -> None:
    objects = open_objects(str(directory))
    calls.clear()
    objects.put("a/b/1", b"1")
    assert calls == ["sync .", "sync *", "sync a", "sync .", "replace a/b/1", "sync a/b"]
    calls.clear()
    objects.put("a/b/2", b"2")
    assert calls == ["sync *", "replace a/b/2", "sync a/b"]
    calls.clear()
    assert objects.put_if_absent("a/c/3", b"3")
    assert calls == ["sync *", "sync a", "link a/c/3", "sync a/c"], "a is durable already"
    calls.clear()
    objects.put_all([("a/b/4", b"4"), ("a/b/5", b"5")])
    assert calls == ["sync *", "sync *", "replace a/b/4", "replace a/b/5", "sync a/b"]
    calls.clear()
    objects.delete("a/b/1")
    assert calls == ["sync a/b"]
    calls.clear()
    objects.move("a/b/2", "a/c/2")
    assert calls == ["replace a/c/2", "sync a/c"]
    calls.clear()
    objects.move("a/b/2", "a/c/2")
    assert calls == ["replace a/c/2", "sync a/c"], "whoever moved it may not have synced it yet"


def test_objects_that_are_deleted_together_take_their_directory_and_one_sync(
    directory: Path, calls: list[str]
) -> None:
    objects, other = open_objects(str(directory)), open_objects(str(directory))
    objects.put_all([("a/b/1", b"1"), ("a/b/2", b"2")])
    other.put("a/b/3", b"3")
    calls.clear()
    other.delete_all("a/b")
    assert calls == ["sync a"]
    assert not (directory / "a" / "b").exists()
    objects.put("a/b/4", b"4")
    assert calls == ["sync a", "sync *", "sync a", "replace a/b/4", "sync a/b"]
    (directory / "a" / "b" / ".foreign").touch()
    other.delete_all("a")
    assert [path.name for path in (directory / "a" / "b").iterdir()] == [".foreign"]


def test_who_loses_syncs_what_the_winner_may_not_have_synced_yet(
    directory: Path, calls: list[str]
) -> None:
    open_objects(str(directory)).put("a/b", b"1")
    loser = open_objects(str(directory))
    calls.clear()
    assert not loser.put_if_absent("a/b", b"2")
    assert calls == ["sync .", "sync *", "sync .", "link a/b", "sync a"]


@pytest.mark.crash
def test_a_killed_writer_leaves_the_old_object_and_its_rest_is_removed(directory: Path) -> None:
    objects = open_objects(str(directory))
    objects.put("a", b"old")
    for action in [
        "objects.put('a', b'new')",
        "objects.put_if_absent('b', b'new')",
        "objects.put_all([('a', b'new')])",
    ]:
        with writer(directory, action, "os.kill(os.getpid(), signal.SIGKILL)") as process:
            assert process.wait() == -signal.SIGKILL
        assert len(incoming(directory)) == 1
        assert [info.key for info in objects.list()] == ["a"]
        assert objects.get("a") == b"old"
        open_objects(str(directory)).put("c", b"")
        assert incoming(directory) == []
        objects.delete("c")


@pytest.mark.long
def test_a_living_writer_is_not_taken_for_a_dead_one(directory: Path) -> None:
    waits = "print('syncing', flush=True); sys.stdin.readline()"
    with writer(directory, "objects.put('a', b'1')", waits) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "syncing\n"
        open_objects(str(directory)).put("b", b"2")
        assert len(incoming(directory)) == 1
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait() == 0
    assert open_objects(str(directory)).get("a") == b"1"
    assert incoming(directory) == []


@pytest.mark.long
def test_a_disk_that_refuses_leaves_the_old_object_and_nothing_else(directory: Path) -> None:
    objects = open_objects(str(directory))
    objects.put("a", b"old")
    action = """
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
def put_both(key, data):
    objects.put_all([('b', b'small'), (key, data)])

for put in (objects.put, objects.put_if_absent, put_both):
    try:
        put('a', bytes(2000))
    except StorageError as error:
        print(error)
"""
    with writer(directory, action) as process:
        output, _ = process.communicate()
    refusal = f"cannot put a in {directory}: File too large; raise the limit on file sizes, "
    assert output.count(refusal) == 2
    assert f"cannot put 2 objects like b in {directory}: File too large" in output
    assert objects.head("b") is None
    assert objects.get("a") == b"old"
    assert incoming(directory) == []


def test_a_directory_below_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot open the directory in .*: Not a directory"):
        open_objects(str(tmp_path / "file" / "objects"))


def test_a_directory_that_vanished_is_an_error_of_the_storage(directory: Path) -> None:
    objects = open_objects(str(directory))
    objects.put("a", b"1")
    directory.rename(directory.with_name("elsewhere"))
    with pytest.raises(StorageError, match=r"cannot put a in .*: No such file or directory"):
        objects.put("a", b"2")
    with pytest.raises(NotFoundError):
        objects.get("a")


def test_a_key_that_is_a_directory_of_another_is_refused(local_objects: Objects) -> None:
    local_objects.put("a/b", b"1")
    with pytest.raises(StorageError, match="cannot put a in"):
        local_objects.put("a", b"2")
    with pytest.raises(StorageError, match="cannot put a in"):
        local_objects.put_if_absent("a", b"2")
    with pytest.raises(StorageError, match="cannot put a/b/c in"):
        local_objects.put("a/b/c", b"2")
    assert [info.key for info in local_objects.list()] == ["a/b"]


def test_files_of_others_are_not_listed(directory: Path) -> None:
    objects = open_objects(str(directory))
    objects.put("a/b", b"1")
    (directory / "a" / ".hidden").write_bytes(b"")
    (directory / "a" / "not a key").write_bytes(b"")
    (directory / "a" / "dangling").symlink_to("nowhere")
    assert [info.key for info in objects.list()] == ["a/b"]


def test_an_object_gets_the_permissions_of_any_new_file(directory: Path) -> None:
    objects = open_objects(str(directory))
    objects.put("a", b"1")
    (directory / "other").touch()
    modes = [stat.S_IMODE((directory / name).stat().st_mode) for name in ("a", "other")]
    assert modes[0] == modes[1]
