"""How any process gets at a workspace: by its directory where it sees that, else through its owner.

It is good for as long as the owner stays the same; who sees the directory finds the next one.
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


def is_address(place: str) -> bool:
    return place.startswith(("grpc://", "grpc+tls://"))


def check_place(place: str) -> str:
    """Itself. What looks like an address of another kind is no directory that anybody wants."""
    if not is_address(place):
        if _SCHEME.match(place):
            raise UsageError(
                f"{place!r} is no place for a workspace",
                do="name a directory, grpc://host:port or grpc+tls://host:port",
            )
        return place
    address = _ADDRESS.fullmatch(place)
    if address is None or not 0 < int(address[1]) <= _PORT_MAX:
        raise UsageError(
            f"{place!r} does not say a host and a port", do="write it like grpc://localhost:7070"
        )
    return place


class WorkspaceRef(msgspec.Struct, frozen=True, array_like=True):
    directory: DirectoryIdentity | None
    """None if the workspace is known by its address only."""
    address: str
    """Of the owner."""
    token: str
    identity: str = ""
    """Random, of the workspace: nobody else may answer for it."""

    def open(self, how: Callable[..., T], service: ServiceSettings) -> T:
        """`how` is `Workspace` or `WorkspaceConnection`; `service` is that of this process."""
        is_here = self.directory is not None and _may_open(self.directory)
        place = self.directory.path if self.directory and is_here else self.address
        settings = Settings(service=msgspec.structs.replace(service, token=self.token))
        try:
            if not place:
                raise PeerLostError("its owner is gone")
            return how(place, settings, create=False, identity=self.identity)
        except (PeerLostError, WorkspaceError) as error:
            if is_here or self.directory is None:
                raise
            raise type(error)(
                f"{self.directory.path} is not open to this process, and cannot be reached:"
                f" {error.what}",
                do=_REMEDY,
            ) from error


def _may_open(there: DirectoryIdentity) -> bool:
    """Who sees the directory of another user goes through that user's process."""
    return is_seen(there) and os.access(there.path, os.R_OK | os.W_OK | os.X_OK)


def callable_by_others(address: str) -> str:
    """An owner that listens on every address of its machine is called by the machine's name."""
    return _ANY_HOST.sub(socket.gethostname(), address)
