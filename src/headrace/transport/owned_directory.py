"""A directory that one process owns: its lock, its identity, and the address of the owner.

The process that holds a kernel lock on the directory itself is the owner. There is no lock file
that somebody could delete. The lock ends with the process, however that ends, and never by a
time-out. `owner.json` only tells others where to call; they believe it only if somebody answers
there for this directory.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.decoders import decode_json
from headrace.errors import (
    HeadraceError,
    NotFoundError,
    StorageError,
    TransportError,
    UsageError,
    WorkspaceError,
)
from headrace.files import UNFINISHED, storage_errors, write_durably

T = TypeVar("T")

_LOOK_AGAIN_S = 0.02


class OwnerAddress(msgspec.Struct, frozen=True):
    """The contents of `owner.json`: where to call the owner."""

    address: str
    token: str
    process: int


class OwnedDirectory:
    """One directory, and its lock while this process holds it."""

    noun = "directory"
    """What errors call it, such as `workspace`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None
        self.id = ""
        """A random id that tells this directory from every other."""

    def try_lock(self) -> bool:
        """Take the lock if nobody has it. Returns True if this process has it now."""
        return self._lock is not None or self._take_lock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait_for_lock(self) -> None:
        """Wait until nobody has the lock, and take it. The kernel wakes the process that waits."""
        if self._lock is None:
            self._take_lock(fcntl.LOCK_EX)

    def _take_lock(self, how: int) -> bool:
        with storage_errors(f"{self.root}", do=f"open a {self.noun} that you may read"):
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"{self.root} cannot be locked: {error.strerror or error}",
                do=f"keep {self.noun}s on a local disk",
            ) from error
        self._lock = descriptor
        # A forked child has the descriptor too, and would keep the lock beyond this process.
        os.register_at_fork(after_in_child=self.unlock)
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def announce(self, owner: OwnerAddress) -> None:
        """Write `owner.json`, which only this user may read: it holds the token."""
        for left in self.root.glob(f"owner.json.*{UNFINISHED}"):
            left.unlink()
        write_durably(self.root / "owner.json", msgspec.json.encode(owner))

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            (self.root / "owner.json").unlink()

    def owner(self) -> OwnerAddress | None:
        try:
            data = (self.root / "owner.json").read_bytes()
            return decode_json(data, OwnerAddress)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise UsageError(
                f"{self.root} is owned by another user's process",
                do="ask that user for its address and token, and open the address",
            ) from error
        except msgspec.DecodeError:
            return None

    def attach(
        self,
        own: Callable[[], T] | None,
        work_through: Callable[[OwnerAddress], T],
        *,
        patience_s: float,
        is_closing: Callable[[], bool],
    ) -> T:
        """Return what `own` makes if this process gets the lock, else work through the owner.

        Without `own` this process never becomes the owner. Raises WorkspaceError if nobody answers
        for the directory within `patience_s`.
        """
        deadline = time.monotonic() + patience_s
        unreachable: HeadraceError | None = None
        while not is_closing():
            if own and self.try_lock():
                # The address of an earlier owner is no longer true.
                self.withdraw()
                return own()
            if owner := self.owner():
                try:
                    return work_through(owner)
                except (TransportError, NotFoundError) as error:
                    # A refusal counts too: another service may listen where an earlier owner did.
                    unreachable = error
            if time.monotonic() > deadline:
                raise self._unreachable(owner, unreachable, is_locked=own is not None)
            # The owner is starting or ending, and nothing tells when that is done.
            time.sleep(_LOOK_AGAIN_S)
        raise UsageError(f"the {self.noun} is closed", do="open it again")

    def _unreachable(
        self, owner: OwnerAddress | None, why: HeadraceError | None, *, is_locked: bool
    ) -> WorkspaceError:
        if owner is None and not is_locked:
            return WorkspaceError(
                f"no process owns {self.root}", do=f"open the {self.noun} in a process that stays"
            )
        who = f"process {owner.process}" if owner else "a process"
        reason = why.what if why else "it has not announced its address"
        return WorkspaceError(
            f"{self.root} is locked by {who}, which cannot be reached ({reason})",
            do="see whether that process is stopped or hangs",
        )
