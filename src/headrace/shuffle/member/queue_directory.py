"""A member's folder for queue files: its own while it lives, removed by the next one if it died.

A folder is locked by whoever uses it, and the lock ends with the process, however that ends.
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
"""Beyond doubt ours: what has it and no owner is removed, even from a directory of others."""


@contextmanager
def own_folder(root: Path) -> Iterator[Path]:
    """A new folder below `root`; those that dead members left there are removed."""
    do = "name a directory that can be written to"
    with storage_errors(f"no place for queue files in {root}", do=do):
        make_directory(root)
        for left in root.glob(f"{_PREFIX}*/"):
            # Another user's is not ours to remove.
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
        # Before it was locked, another member may have taken it for a dead one's.
        if (held := _lock(folder)) is not None:
            if folder.exists():
                return folder, held
            os.close(held)


def _lock(folder: Path) -> int | None:
    """None if somebody has it, or the folder is gone."""
    with suppress(FileNotFoundError, BlockingIOError):
        return lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return None
