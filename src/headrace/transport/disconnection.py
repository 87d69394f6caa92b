"""Cuts a peer off by shutting down its socket.

A Flight server cannot end a call whose peer is stopped: the handler stays in its read, and
`shutdown` and the interpreter's exit wait for the handler. But the connection is a socket of this
process. Once the socket is shut down, gRPC ends every call on it within a millisecond.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

Endpoint = tuple[str, int]


def sever(peer: str, port: int) -> bool:
    """Shut down the connection of `peer`, as gRPC names it, to our `port`.

    Returns False if there is none. Raises OSError if this process has too many files open to look
    for it. Every call on that connection ends; all belong to one process, which is equally silent.
    """
    wanted = _parse(peer)
    severed = False
    for connection in _connections():
        with connection, suppress(OSError):
            if wanted == _endpoint(*connection.getpeername()[:2]) and (
                port == connection.getsockname()[1]
            ):
                connection.shutdown(socket.SHUT_RDWR)
                severed = True
    return severed


def _connections() -> Iterator[socket.socket]:
    """Yield duplicates of this process's internet sockets: no other thread can close those."""
    for name in os.listdir("/dev/fd"):
        try:
            descriptor = os.dup(int(name))
        except OSError as error:
            if error.errno == errno.EBADF:
                continue  # Another thread closed it meanwhile.
            raise
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            yield connection
        else:
            connection.close()


def _parse(peer: str) -> Endpoint:
    """Parse `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _endpoint(host.strip("[]"), int(port))


def _endpoint(host: str, port: int) -> Endpoint:
    """Return an address in one form: gRPC listens on IPv6, which maps the addresses of IPv4."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return str(address), port
