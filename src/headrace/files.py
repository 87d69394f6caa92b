"""Durable files, locks, the identity of directories, and errors of the file system."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from headrace.errors import StorageError

UNFINISHED = ".writing"
"""The suffix of files that `write_durably` leaves behind when its process is killed.

Anybody may remove them.
"""

_REMEDIES = {
    errno.ENOSPC: "free some space there, then try again",
    errno.EDQUOT: "free some space there or raise the quota, then try again",
    errno.EFBIG: "raise the limit on file sizes, or write smaller files",
    errno.EROFS: "mount that disk so that it can be written to, or choose another directory",
    errno.EACCES: "give this user access, or choose another directory",
    errno.EPERM: "give this user access, or choose another directory",
    errno.EIO: "mend or replace that disk",
}


@contextmanager
def storage_errors(what: str, *, do: str) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError.

    The remedy is `do`, unless the kind of the error suggests a better one.
    """
    try:
        yield
    except OSError as error:
        reason, remedy = explain(error, do)
        raise StorageError(f"{what}: {reason}", do=remedy) from error


def explain(error: OSError, do: str) -> tuple[str, str]:
    """Return the reason of an error, and its remedy: `do`, unless the error suggests a better."""
    return error.strerror or str(error), _REMEDIES.get(error.errno or 0, do)


def lock(path: Path, how: int) -> int:
    """Lock a file with `flock`, and return the descriptor that holds the lock.

    The lock ends when the descriptor is closed or the process ends. Raises BlockingIOError if
    somebody else holds it and `how` says not to wait.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file's contents. After a power failure it has all old bytes or all new ones.

    Only the user that owns the file may read it.
    """
    with _written(path, data) as temporary:
        os.rename(temporary, path)


def create_durably(path: Path, data: bytes) -> None:
    """Create a file like `write_durably`. Raises FileExistsError if it exists."""
    with _written(path, data) as temporary:
        os.link(temporary, path)


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[str]:
    """Write and sync a temporary file beside `path`, yield its name, and remove it afterwards."""
    descriptor, temporary = tempfile.mkstemp(UNFINISHED, f"{path.name}.", path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Create a directory and its parents if they are missing, and make its name durable.

    Syncs the name of an existing directory too: another process may have created it just now. It
    cannot if another user created it and keeps this process out of the parent.
    """
    path = path.absolute()
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)
    if not missing:
        with suppress(PermissionError):
            sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the creations and removals of names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryIdentity(NamedTuple):
    """Tells a directory of this machine from every other, in any process."""

    path: str
    kernel: str
    device: int
    inode: int


def identify_directory(path: Path) -> DirectoryIdentity:
    status = path.stat()
    return DirectoryIdentity(str(path.absolute()), running_kernel(), status.st_dev, status.st_ino)


def is_here(there: DirectoryIdentity) -> bool:
    """Return True if this process certainly sees the same directory at the same path."""
    return bool(there.kernel) and is_seen(there)


def is_seen(there: DirectoryIdentity) -> bool:
    """Return True if this process sees the same directory at the same path, and may read it.

    Kernels without an identity count as the same kernel.
    """
    try:
        found = identify_directory(Path(there.path))
    except OSError:
        return False
    return found == there and os.access(there.path, os.R_OK | os.X_OK)


@cache
def running_kernel() -> str:
    """Return an id that all processes on one kernel share; empty if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
