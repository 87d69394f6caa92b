"""Files that a power failure leaves whole; locks; directories that two processes see; refusals."""

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
"""The suffix of what `write_durably` leaves behind when it is killed; anybody may remove it."""

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
    """A StorageError if the disk refuses what the block does; `do` unless the refusal says more."""
    try:
        yield
    except OSError as error:
        reason, remedy = explain(error, do)
        raise StorageError(f"{what}: {reason}", do=remedy) from error


def explain(error: OSError, do: str) -> tuple[str, str]:
    """Why the disk refused, and the remedy: `do` unless the refusal says more."""
    return error.strerror or str(error), _REMEDIES.get(error.errno or 0, do)


def lock(path: Path, how: int) -> int:
    """A descriptor with a lock, as `flock` has them: it ends with the descriptor, or the process.

    BlockingIOError if somebody else has it, and `how` says not to wait.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file's contents: after a power failure it has the old ones or the new.

    Only its user may read it.
    """
    with _written(path, data) as temporary:
        os.rename(temporary, path)


def create_durably(path: Path, data: bytes) -> None:
    """As `write_durably`, but a FileExistsError if the file is there."""
    with _written(path, data) as temporary:
        os.link(temporary, path)


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[str]:
    """A synced file with the data, beside where it is to go; gone afterwards."""
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
    """Make a directory if it is missing, and those above it; its name is durable on return.

    Even one that exists, since another process may just have made it; unless that is another
    user's doing, who keeps the directory above from us.
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
    """Make durable which names are in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryIdentity(NamedTuple):
    """A directory of this machine, as another process of it can tell it from any other."""

    path: str
    kernel: str
    device: int
    inode: int


def identify_directory(path: Path) -> DirectoryIdentity:
    status = path.stat()
    return DirectoryIdentity(str(path.absolute()), running_kernel(), status.st_dev, status.st_ino)


def is_here(there: DirectoryIdentity) -> bool:
    """Whether it is certain that this process sees the same directory at the same path."""
    return bool(there.kernel) and is_seen(there)


def is_seen(there: DirectoryIdentity) -> bool:
    """Whether this process sees, and may read, the same directory at the same path.

    Kernels that do not tell which they are count as the same.
    """
    try:
        found = identify_directory(Path(there.path))
    except OSError:
        return False
    return found == there and os.access(there.path, os.R_OK | os.X_OK)


@cache
def running_kernel() -> str:
    """The same in all processes that share files through one kernel; nothing if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
