from __future__ import annotations

import os
import resource
import socket

import pytest

from headrace.transport.disconnection import sever


@pytest.mark.parametrize(
    ("family", "host", "peer"),
    [
        (socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1:{}"),
        (socket.AF_INET6, "::1", "ipv6:%5B::1%5D:{}"),
    ],
)
def test_severing_ends_that_connection_and_no_other(
    family: socket.AddressFamily, host: str, peer: str
) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = listener.getsockname()[1]
    with listener:
        callers = [socket.create_connection((host, port), timeout=10) for _ in range(2)]
        served = [listener.accept()[0] for _ in callers]
        names = [peer.format(caller.getsockname()[1]) for caller in callers]
        assert sever(names[0], port)
        assert callers[0].recv(1) == b""
        served[1].sendall(b"x")
        assert callers[1].recv(1) == b"x"
        assert not sever(names[1], port + 1)
        for connection in callers + served:
            connection.close()


@pytest.mark.parametrize("listed", [True, False])
def test_a_connection_that_cannot_be_looked_for_is_an_error(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if listed:
        names = os.listdir("/dev/fd")
        monkeypatch.setattr(os, "listdir", lambda _: names)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            sever("ipv4:127.0.0.1:1", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
