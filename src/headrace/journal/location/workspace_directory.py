"""The directory of a workspace: its version, its lock, and the address of its owner.

The process that holds a kernel lock on the directory itself is the owner. There is no lock file
that somebody could delete. The lock ends with the process, however that ends, and never by a
time-out. `owner.json` only tells others where to call; they believe it only if somebody answers
there for this workspace.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.errors import StorageError, UsageError, VersionError, WorkspaceError
from headrace.files import UNFINISHED, create_durably, make_directory, storage_errors, write_durably

FORMAT = 1


class _Identity(msgspec.Struct):
    """The contents of `workspace.json`."""

    format: int
    id: str = ""
    """A random id that tells this workspace from every other."""


class OwnerAddress(msgspec.Struct, frozen=True):
    """The contents of `owner.json`: where to call the owner."""

    address: str
    token: str
    process: int


class WorkspaceDirectory:
    """One directory, and its lock while this process holds it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None
        self.id = ""

    def prepare(self, *, create: bool) -> None:
        """Create the directory if it is missing; refuse a format that this version cannot read."""
        identity = self.root / "workspace.json"
        try:
            with storage_errors(f"{self.root}", do="choose a directory that can be written to"):
                if not identity.exists():
                    self._make(identity, create=create)
                found = msgspec.json.decode(identity.read_bytes(), type=_Identity)
        except msgspec.DecodeError as error:
            raise WorkspaceError(
                f"{identity} cannot be read: {error}", do="restore it from a backup"
            ) from error
        if found.format > FORMAT:
            raise VersionError(
                f"{self.root} has format {found.format}, and this Headrace knows up to {FORMAT}",
                do="use the Headrace that wrote it, or a newer one",
            )
        self.id = found.id

    def _make(self, identity: Path, *, create: bool) -> None:
        if not create:
            raise WorkspaceError(f"{self.root} is not a workspace", do="create a collection there")
        make_directory(self.root)
        if self._holds_foreign_files() and not identity.exists():
            raise WorkspaceError(
                f"{self.root} holds files that are not a workspace's",
                do="choose an empty or a new directory",
            )
        with suppress(FileExistsError):
            create_durably(identity, msgspec.json.encode(_Identity(FORMAT, secrets.token_hex(16))))

    def _holds_foreign_files(self) -> bool:
        """Return True if other files are there than those that a dying process left unfinished."""
        return any(not each.name.endswith(UNFINISHED) for each in self.root.iterdir())

    def try_lock(self) -> bool:
        """Take the lock if nobody has it. Returns True if this process has it now."""
        return self._lock is not None or self._take_lock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait_for_lock(self) -> None:
        """Wait until nobody has the lock, and take it. The kernel wakes the process that waits."""
        if self._lock is None:
            self._take_lock(fcntl.LOCK_EX)

    def _take_lock(self, how: int) -> bool:
        with storage_errors(f"{self.root}", do="open a workspace that you may read"):
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
                do="keep workspaces on a local disk",
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
            return msgspec.json.decode(data, type=OwnerAddress)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise UsageError(
                f"{self.root} is owned by another user's process",
                do="ask that user for its address and token, and open the address",
            ) from error
        except msgspec.DecodeError:
            return None
