"""Files are written whole, and names of directories are durable."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.files import (
    UNFINISHED,
    create_durably,
    identify_directory,
    is_here,
    make_directory,
    storage_errors,
    write_durably,
)


@pytest.mark.parametrize("write", [write_durably, create_durably])
def test_a_written_file_is_whole_private_and_alone(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    write(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_replaced_and_never_created_twice(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"first")
    write_durably(tmp_path / "file", b"second")
    with pytest.raises(FileExistsError):
        create_durably(tmp_path / "file", b"third")
    assert (tmp_path / "file").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_many_that_create_a_file_one_does(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    created: list[bytes] = []

    def create(data: bytes) -> None:
        start.wait()
        try:
            create_durably(tmp_path / "file", data)
        except FileExistsError:
            return
        created.append(data)

    threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(tmp_path / "file").read_bytes()] == created
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("write", [write_durably, create_durably])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_what_cannot_be_synced_leaves_the_directory_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path, bytes], None],
    kind: type[BaseException],
) -> None:
    (tmp_path / "other").write_bytes(b"old")

    def fail(_: int) -> None:
        [unfinished] = tmp_path.glob(f"file.*{UNFINISHED}")
        assert unfinished.read_bytes() == b"data"
        raise kind

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind):
        write(tmp_path / "file", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record every sync from now on, in order."""
    seen: list[Path] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return seen


# proves G1
@pytest.mark.parametrize("write", [write_durably, create_durably])
def test_contents_are_synced_before_the_name_is_there_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    seen = synced(monkeypatch)
    write(tmp_path / "file", b"data")
    contents, directory = seen
    assert contents.name.startswith("file.")
    assert contents.name.endswith(UNFINISHED)
    assert directory == tmp_path


# proves G1
def test_the_names_of_all_directories_that_were_made_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = synced(monkeypatch)
    deep = tmp_path / "a" / "b" / "c"
    make_directory(deep)
    assert deep.is_dir()
    assert set(seen) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    seen.clear()
    make_directory(deep)
    assert seen == [tmp_path / "a" / "b"]


def test_a_directory_is_known_again_and_told_from_any_other(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    found = identify_directory(here)
    assert is_here(found)
    assert not is_here(found._replace(path=str(other))), "another directory at its path"
    assert not is_here(found._replace(kernel="another")), "another machine"
    assert not is_here(found._replace(kernel="")), "nobody knows which machine"
    here.rmdir()
    assert not is_here(found), "it is gone"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "cannot: No space left on device; free some space there, then try again"),
        (errno.ENOENT, "cannot: No such file or directory; look"),
    ],
)
def test_a_refusal_says_what_to_do_about_it(number: int, message: str) -> None:
    with pytest.raises(StorageError) as refused, storage_errors("cannot", do="look"):
        raise OSError(number, os.strerror(number))
    assert str(refused.value) == message
