"""Where a workspace is: a directory or the address of its owner, and a reference that has both.

A process that sees the directory opens that, and finds every later owner. Any other process goes
through the owner, so its reference is good only while the owner stays the same.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.errors import PeerLostError, UsageError, WorkspaceError
from headrace.files import DirectoryIdentity, is_seen
from headrace.settings import ServiceSettings, Settings

T = TypeVar("T")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ADDRESS = re.compile(r"grpc(?:\+tls)?://(?:\[[^]/]+]|[^][/:@]+):([0-9]{1,5})")
_PORT_MAX = 65_535
_ANY_HOST = re.compile(r"(?<=://)(0\.0\.0\.0|\[::0?\])(?=:)")
_REMEDY = "serve it with `headrace serve --host`, at an address that other machines can call"


def is_address(location: str) -> bool:
    return location.startswith(("grpc://", "grpc+tls://"))


def check_location(location: str) -> str:
    """Return `location`. Raises UsageError if it is neither a directory nor a valid address."""
    if not is_address(location):
        if _SCHEME.match(location):
            raise UsageError(
                f"{location!r} cannot be a workspace",
                do="name a directory, grpc://host:port or grpc+tls://host:port",
            )
        return location
    address = _ADDRESS.fullmatch(location)
    if address is None or not 0 < int(address[1]) <= _PORT_MAX:
        raise UsageError(
            f"{location!r} has no valid host and port", do="write it like grpc://localhost:7070"
        )
    return location


class WorkspaceRef(msgspec.Struct, frozen=True, array_like=True):
    directory: DirectoryIdentity | None
    """None if the workspace is known only by its address."""
    address: str
    """The address of the owner."""
    token: str
    identity: str = ""
    """The random id of the workspace: no other workspace may answer for it."""

    def open(self, how: Callable[..., T], service: ServiceSettings) -> T:
        """Open it with `how`, which is `Workspace` or `WorkspaceConnection`.

        `service` are the settings of this process.
        """
        is_here = self.directory is not None and _may_open(self.directory)
        location = self.directory.path if self.directory and is_here else self.address
        settings = Settings(service=msgspec.structs.replace(service, token=self.token))
        try:
            if not location:
                raise PeerLostError("its owner is gone", do=_REMEDY)
            return how(location, settings, create=False, identity=self.identity)
        except (PeerLostError, WorkspaceError) as error:
            if is_here or self.directory is None:
                raise
            raise type(error)(
                f"{self.directory.path} is not open to this process, and cannot be reached:"
                f" {error.what}",
                do=_REMEDY,
            ) from error


def _may_open(there: DirectoryIdentity) -> bool:
    """Return True if this process sees the directory and may write to it.

    Otherwise it is another user's, and this process goes through that user's process.
    """
    return is_seen(there) and os.access(there.path, os.R_OK | os.W_OK | os.X_OK)


def callable_by_others(address: str) -> str:
    """Replace the address that means every address of a machine by the name of this machine."""
    return _ANY_HOST.sub(socket.gethostname(), address)
