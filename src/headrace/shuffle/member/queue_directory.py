"""A member's folder for queue files. If the member dies, the next one removes the folder.

A member locks its folder, and the lock ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.files import lock, make_directory, storage_errors

_PREFIX = "headrace-member-"
"""Members remove unlocked folders with this prefix, also from directories that others use."""


@contextmanager
def own_folder(root: Path) -> Iterator[Path]:
    """Make a new folder below `root`, and remove those that dead members left there."""
    do = "name a directory that you may write to"
    with storage_errors(f"queue files cannot be kept in {root}", do=do):
        make_directory(root)
        for left in root.glob(f"{_PREFIX}*/"):
            # A folder of another user is not ours to remove.
            with suppress(PermissionError):
                if (held := _lock(left)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(held)
        folder, held = _make(root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _make(root: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        # Before this lock, another member may have taken the folder for a dead member's.
        if (held := _lock(folder)) is not None:
            if folder.exists():
                return folder, held
            os.close(held)


def _lock(folder: Path) -> int | None:
    """Return None if somebody has locked the folder, or it is gone."""
    with suppress(FileNotFoundError, BlockingIOError):
        return lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return None
