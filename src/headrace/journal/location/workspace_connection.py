"""A process's connection to the journals of a workspace, as its owner or through its owner.

The first process that opens a directory owns and serves it. The others work through the owner. When
the owner is gone, the next call of any process makes that process the owner or finds the new one.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.errors import (
    PeerLostError,
    StorageError,
    UsageError,
    WorkspaceError,
)
from headrace.files import identify_directory, storage_errors
from headrace.journal.contract import Journals
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.local.maintenance import Maintenance
from headrace.journal.local.owner import Owner
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.location.workspace_ref import (
    WorkspaceRef,
    callable_by_others,
    check_location,
    is_address,
)
from headrace.journal.wire.journal_service import JournalService
from headrace.journal.wire.messages import JOURNALS, journals_of
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.settings import Settings
from headrace.transport import Server
from headrace.transport.owned_directory import OwnerAddress

T = TypeVar("T")

OWNERS_LOST_MAX = 8
"""A call gives up when it has lost this many owners, one after the other."""


class Ownership:
    """Everything that the owner of a workspace runs."""

    def __init__(self, directory: WorkspaceDirectory, settings: Settings) -> None:
        token = settings.service.token or secrets.token_urlsafe(32)
        service = msgspec.structs.replace(settings.service, token=token)
        with ExitStack() as undo:
            self.owner = Owner(directory.root, settings, directory.id)
            undo.callback(self.owner.close)
            self.maintenance = Maintenance(self.owner, settings.journal)
            undo.callback(self._close_maintenance)
            journals = JournalService(self.owner)
            server = Server({JOURNALS: journals, journals_of(directory.id): journals}, service)
            undo.callback(server.close)
            self.address = server.address
            self.maintenance.start()
            undo.callback(directory.withdraw)
            directory.announce(OwnerAddress(self.address, token, os.getpid()))
            self._running = undo.pop_all()

    def close(self) -> None:
        self._running.close()

    def _close_maintenance(self) -> None:
        # Without the last snapshot the next opening takes longer; it loses nothing.
        with suppress(StorageError, WorkspaceError):
            self.maintenance.close()


class WorkspaceConnection:
    """Gives out the `Journals` to use now. Any thread may call."""

    def __init__(
        self,
        location: str | Path,
        settings: Settings,
        *,
        create: bool,
        identity: str = "",
        directory: WorkspaceDirectory | None = None,
    ) -> None:
        """Attach to the workspace at `location`, a directory or an address.

        With an `identity`, only the workspace of that identity will do. `directory` is given by a
        caller that has prepared it, and may hold its lock.
        """
        self.settings = settings
        self._identity = identity
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._closing = False
        self._closed = False
        self._ownership: Ownership | None = None
        self._directory: WorkspaceDirectory | None = None
        self._address = ""
        if isinstance(location, str) and is_address(check_location(location)):
            self._address = location
        else:
            self._directory = directory or WorkspaceDirectory(Path(location).absolute())
            self._directory.prepare(create=create)
        self._journals: Journals = self._attach()

    @property
    def directory(self) -> Path | None:
        """The directory of the workspace; None if it is known by an address."""
        return self._directory.root if self._directory else None

    @property
    def ownership(self) -> Ownership | None:
        """What this process runs as the owner; None if it is a client."""
        return self._ownership

    @property
    def finds_next_owner(self) -> bool:
        """True if the next owner is certainly one of the same workspace."""
        return self._directory is not None or self._identity != ""

    @property
    def attached(self) -> Journals:
        """The journals that were attached last, even if they are lost: this never waits."""
        return self._journals

    def reach(self) -> WorkspaceRef:
        if self._directory is None:
            return WorkspaceRef(None, self._address, self.settings.service.token, self._identity)
        # The call finds the owner, or makes this process the owner.
        self.call(lambda journals: journals.journal_names([]))
        owner = self._directory.owner() or OwnerAddress("", "", 0)
        address = callable_by_others(owner.address)
        return WorkspaceRef(
            identify_directory(self._directory.root), address, owner.token, self._directory.id
        )

    def journals(self) -> Journals:
        if os.getpid() != self._process:
            raise UsageError(
                "this workspace was opened before the process forked", do="open it again here"
            )
        if self._closed:
            raise UsageError("the workspace is closed", do="open it again")
        journals = self._journals
        if isinstance(journals, RemoteJournals) and journals.is_lost:
            return self.reattach(journals)
        return journals

    def call(self, use: Callable[[Journals], T]) -> T:
        """Run `use` with the journals; repeat it with the next owner if theirs is gone.

        Only for calls that may be done twice.
        """
        journals = self.journals()
        for _ in range(OWNERS_LOST_MAX):
            try:
                return use(journals)
            except PeerLostError:
                journals = self.reattach(journals)
        return use(journals)

    def reattach(self, lost: Journals) -> Journals:
        """Return the journals to use instead of those that were lost."""
        with self._lock:
            if self._journals is lost and not self._closed:
                lost.close()
                self._journals = self._attach()
            return self.journals()

    def close(self) -> None:
        # A thread that holds the lock while it looks for the next owner sees this and gives up.
        self._closing = True
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with ExitStack() as closing:
                if self._directory:
                    closing.callback(self._directory.unlock)
                if self._ownership:
                    closing.callback(self._ownership.close)
                # Writers already know of a failing disk, and the next owner rolls back what they
                # left open.
                with suppress(StorageError, WorkspaceError):
                    self._journals.close()

    def _attach(self) -> Journals:
        if self._directory is None:
            kind = journals_of(self._identity) if self._identity else JOURNALS
            return RemoteJournals(self._address, self.settings.service, kind)
        directory = self._directory
        return directory.attach(
            lambda: self._become_owner(directory),
            self._work_through,
            patience_s=self.settings.service.silence_s,
            is_closing=lambda: self._closing,
        )

    def _become_owner(self, directory: WorkspaceDirectory) -> Journals:
        try:
            with storage_errors(f"{directory.root}", do="mend the directory or choose another"):
                self._ownership = Ownership(directory, self.settings)
        except BaseException:
            directory.unlock()
            raise
        return LocalJournals(self._ownership.owner)

    def _work_through(self, owner: OwnerAddress) -> Journals:
        service = msgspec.structs.replace(self.settings.service, token=owner.token)
        assert self._directory
        return RemoteJournals(owner.address, service, journals_of(self._directory.id))
