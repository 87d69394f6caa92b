"""Objects as files below a directory.

The order of a write: write a file in `.incoming` -> sync it -> give it its name -> sync the
directory. A name therefore always stands for a whole, durable object. A crash leaves at most a file
in `.incoming`, which the next process that writes removes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from itertools import takewhile
from pathlib import Path

from headrace.files import explain, make_directory, sync_directory
from headrace.storage.contract import (
    ObjectInfo,
    beyond_end,
    check_key,
    check_prefix,
    check_range,
    is_key,
)
from headrace.storage.object_errors import ObjectErrors

_INCOMING = ".incoming"
_PUT_TOGETHER = 128
"""`put_all` has at most this many files open."""
_NOTHING_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalObjects:
    """The objects of a directory. Many processes of one machine may use them at once.

    A put creates directories as needed. They stay when they become empty, but for `delete_all`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._incoming = self._root / _INCOMING
        # Directories whose own names are durable: a put need not sync them.
        self._durable: set[Path] = set()
        self._errors = ObjectErrors(self._root, (OSError,), _is_missing, _explain)
        with self._errors.during("open the directory"):
            make_directory(self._root)

    def __reduce__(self) -> tuple[object, ...]:
        return LocalObjects, (self._root,)

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        path = self._path(key)
        with self._errors.during(f"put {key}"), self._staged(data) as staged:
            self._make_directory(path.parent)
            staged.replace(path)
            sync_directory(path.parent)

    def put_all(self, objects: Sequence[tuple[str, bytes | bytearray | memoryview]]) -> None:
        files = [(self._path(key), data) for key, data in objects]
        for first in range(0, len(files), _PUT_TOGETHER):
            self._put_together(files[first : first + _PUT_TOGETHER])

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        path = self._path(key)
        with self._errors.during(f"put {key}"), self._staged(data) as staged:
            self._make_directory(path.parent)
            try:
                path.hardlink_to(staged)
                won = True
            except FileExistsError:
                if path.is_dir():
                    raise
                won = False
            # The loser syncs too: it will rely on an object that its winner may not have synced.
            sync_directory(path.parent)
            return won

    def get(self, key: str) -> bytes:
        with self._errors.during_get(key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        path = self._path(key)
        if length == 0:
            return b""
        with self._errors.during_get(key), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if start + length > size:
                raise beyond_end(key, start, length, size)
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo | None:
        with self._errors.during(f"look at {key}"):
            try:
                status = self._path(key).stat()
            except _NOTHING_THERE:
                return None
        return _info(key, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        prefix = check_prefix(prefix)
        with self._errors.during(f"list {prefix or 'all objects'}"):
            return sorted(self._below(prefix), key=lambda info: info.key)

    def move(self, key: str, to: str) -> None:
        source, target = self._path(key), self._path(to)
        with self._errors.during_get(key):
            self._make_directory(target.parent)
            try:
                source.replace(target)
            except FileNotFoundError:
                if not target.is_file():
                    raise
            sync_directory(target.parent)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors.during(f"delete {key}"), suppress(*_NOTHING_THERE):
            path.unlink()
            sync_directory(path.parent)

    def delete_all(self, prefix: str) -> None:
        directory = self._path(check_prefix(prefix))
        with self._errors.during(f"delete all of {prefix}"):
            if not directory.is_dir():
                return
            for path, _, names in os.walk(directory, topdown=False):
                for name in filter(is_key, names):
                    Path(path, name).unlink(missing_ok=True)
                # What something else left there stays, and its directory with it.
                with suppress(OSError):
                    os.rmdir(path)
            sync_directory(directory if directory.is_dir() else directory.parent)

    def _put_together(self, group: Sequence[tuple[Path, bytes | bytearray | memoryview]]) -> None:
        """Store a few objects: all are written before the first sync, which is cheaper."""
        directories = dict.fromkeys(path.parent for path, _ in group)
        first = group[0][0].relative_to(self._root)
        what = f"put {len(group)} objects like {first}"
        with self._errors.during(what), ExitStack() as stack:
            staged = [stack.enter_context(self._written(data)) for _, data in group]
            for _, file in staged:
                os.fsync(file.fileno())
            for directory in directories:
                self._make_directory(directory)
            for (path, _), (temporary, _) in zip(group, staged, strict=True):
                temporary.replace(path)
            for directory in directories:
                sync_directory(directory)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _below(self, directory: str) -> Iterator[ObjectInfo]:
        with suppress(*_NOTHING_THERE), os.scandir(self._root / directory) as entries:
            for entry in entries:
                key = f"{directory}/{entry.name}" if directory else entry.name
                if not is_key(key):
                    continue
                if entry.is_dir():
                    yield from self._below(key)
                else:
                    with suppress(FileNotFoundError):  # deleted since the directory was read
                        yield _info(key, entry.stat())

    @contextmanager
    def _staged(self, data: bytes | bytearray | memoryview) -> Iterator[Path]:
        """Yield a durable file with `data` and a temporary name, locked while its writer lives."""
        with self._written(data) as (path, file):
            os.fsync(file.fileno())
            yield path

    @contextmanager
    def _written(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[Path, FileIO]]:
        """Yield a file like `_staged`, which is not durable yet."""
        if self._incoming not in self._durable:
            self._make_directory(self._incoming)
            _remove_abandoned(self._incoming)
        path, file = _create_locked(self._incoming)
        with file:
            try:
                unwritten = memoryview(data).cast("B")
                while unwritten:
                    unwritten = unwritten[file.write(unwritten) :]
                yield path, file
            finally:
                path.unlink(missing_ok=True)

    def _make_directory(self, directory: Path) -> None:
        """Make the name of `directory` durable, even if another process has just made it."""
        below_root = takewhile(lambda each: each != self._root, (directory, *directory.parents))
        # `delete_all`, in any process, removes directories.
        made = list(
            takewhile(lambda each: each not in self._durable or not each.is_dir(), below_root)
        )
        if made:
            directory.mkdir(parents=True, exist_ok=True)
        for each in made:
            sync_directory(each.parent)
        self._durable.update(made)


def _is_missing(error: Exception) -> bool:
    return isinstance(error, _NOTHING_THERE)


def _explain(error: Exception) -> tuple[str, str]:
    assert isinstance(error, OSError)
    return explain(error, "check the path and the disk")


def _create_locked(directory: Path) -> tuple[Path, FileIO]:
    while True:
        path = directory / secrets.token_hex(16)
        file = FileIO(path, "x")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()  # Another process removed it as abandoned before this one locked it.


def _remove_abandoned(directory: Path) -> None:
    """Remove the files whose writers are dead: nobody holds their locks."""
    for path in directory.iterdir():
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
