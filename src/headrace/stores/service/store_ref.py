"""A reference to a store that travels to other processes, such as Spark's executors."""

from __future__ import annotations

import os

import msgspec

from headrace.errors import PeerLostError, WorkspaceError
from headrace.files import DirectoryIdentity, identify_directory, is_seen
from headrace.journal.location.workspace_ref import callable_by_others
from headrace.settings import ServiceSettings
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.store_kinds import StoreKinds

_REMEDY = "serve it with `headrace store serve --host`, at an address that other machines can call"


class StoreRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a store is. It is good as long as the directory is seen, or the owner lives."""

    directory: DirectoryIdentity | None
    """None if the store is known only by its address."""
    address: str
    """The address of the owner."""
    token: str
    identity: str
    """The random id of the store: no other store may answer for it."""

    def open(self, service: ServiceSettings, kinds: StoreKinds) -> SharedStore:
        """Open the store through its owner. This process never becomes the owner.

        `service` are the settings of this process, such as the root of TLS certificates.
        """
        is_here = self.directory is not None and _may_read(self.directory)
        location = self.directory.path if self.directory and is_here else self.address
        settings = msgspec.structs.replace(service, token=self.token)
        try:
            return SharedStore(location, settings, kinds, may_own=False, identity=self.identity)
        except (PeerLostError, WorkspaceError) as error:
            if is_here or self.directory is None:
                raise
            raise type(error)(
                f"{self.directory.path} is not open to this process, and cannot be reached:"
                f" {error.what}",
                do=_REMEDY,
            ) from error


def refer(store: SharedStore) -> StoreRef:
    """Return a reference to an open store."""
    reached = store.reach()
    directory = store.directory
    return StoreRef(
        identify_directory(directory.root) if directory else None,
        callable_by_others(reached.address),
        reached.token,
        store.identity,
    )


def _may_read(there: DirectoryIdentity) -> bool:
    """Return True if this process sees the directory, and may read where its owner is."""
    return is_seen(there) and os.access(there.path, os.R_OK | os.X_OK)
