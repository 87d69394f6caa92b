"""What names a workspace: a directory, or the address of its owner. Pure."""

from __future__ import annotations

import re

from headrace.errors import UsageError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ADDRESS = re.compile(r"grpc(?:\+tls)?://(?:\[[^]/]+]|[^][/:@]+):([0-9]{1,5})")
_PORT_MAX = 65_535


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
