"""Closing is bounded, whatever the peers do, and the process exits."""

from __future__ import annotations

import os
import threading
import time

import pytest

from headrace.errors import PeerLostError, UsageError
from headrace.testing.crash import eventually
from headrace.transport import Client, Server
from tests.sockets import sockets
from tests.transport.echo_service import CALM, REPLIES, SWIFT, Count, Echo, Hold, Say, say
from tests.transport.peer_process import Peer

BOUND_S = 20.0


def test_closing_a_server_tells_its_callers(server: Server, client: Client, echo: Echo) -> None:
    idle, live = (client.converse("echo", REPLIES) for _ in range(2))
    watching = client.stream("echo", Count(0, then_wait=True), REPLIES)
    say(live, "hello")
    begun = time.monotonic()
    server.close(grace_s=2 * BOUND_S)
    assert time.monotonic() - begun < BOUND_S
    for waiting in (idle, live, watching):
        with pytest.raises(PeerLostError, match=f"{server.address} is closing"):
            waiting.receive(timeout_s=10)
    assert [type(echo.ends.get(timeout=10)) for _ in range(2)] == [PeerLostError] * 2
    with pytest.raises(PeerLostError):
        client.converse("echo", REPLIES)


@pytest.mark.long
def test_closing_a_server_does_not_wait_for_a_service_that_hangs(
    server: Server, client: Client, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    channel = client.converse("echo", REPLIES)
    channel.send(Hold())
    echo.heard.get(timeout=10)
    begun = time.monotonic()
    server.close(grace_s=0.1)
    assert time.monotonic() - begun < BOUND_S
    assert "1 services still run" in caplog.text
    with pytest.raises(PeerLostError):
        channel.receive(timeout_s=10)
    echo.released.set()
    assert isinstance(echo.ends.get(timeout=10), PeerLostError)


def test_closing_a_server_cuts_off_a_caller_that_does_not_receive(
    echo: Echo,
) -> None:
    with Server({"echo": echo}, CALM) as server, Client(server.address, CALM) as client:
        client.stream("echo", Count(10**9), REPLIES)
        begun = time.monotonic()
        server.close(grace_s=0.2)
        assert time.monotonic() - begun < BOUND_S
        assert echo.streams_closed.acquire(timeout=10)


def test_closing_twice_is_closing_once(server: Server, client: Client) -> None:
    for closable in (server, client):
        closable.close()
        closable.close()
    with pytest.raises(UsageError, match="closed"):
        client.converse("echo", REPLIES)


def test_closing_leaves_no_thread_and_no_descriptor(echo: Echo) -> None:
    def once() -> None:
        with Server({"echo": echo}, SWIFT) as server, Client(server.address, SWIFT) as client:
            with client.converse("echo", REPLIES) as channel:
                say(channel, "hello")
            client.converse("echo", REPLIES).send(Say("broken off"))

    once()
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/dev/fd"))
    for _ in range(5):
        once()
    for thread in set(threading.enumerate()) - threads:
        if thread.name.startswith("Dummy-"):
            continue  # Python still remembers a thread of gRPC's pool.
        thread.join(10)
        assert not thread.is_alive()
    assert len(os.listdir("/dev/fd")) <= descriptors + 1


def test_a_closed_client_has_no_connection_also_while_somebody_holds_it(server: Server) -> None:
    before = sockets()
    client = Client(server.address, CALM)
    channel = client.converse("echo", REPLIES)
    say(channel, "hello")
    assert sockets() > before
    client.close()
    eventually(lambda: sockets() <= before, BOUND_S, "the connection ends on both sides")
    assert channel.ended


@pytest.mark.crash
@pytest.mark.parametrize("role", ["serve", "serve-carelessly"])
@pytest.mark.parametrize("stopped", [False, True], ids=["idle caller", "stopped caller"])
def test_a_server_process_exits_whatever_its_callers_do(role: str, stopped: bool) -> None:
    with Peer(role) as server, Peer("call", server.line()) as caller:
        assert caller.line() == "heard"
        if stopped:
            caller.stop()
        assert server.finish(timeout_s=BOUND_S) == (0, "")
        if not stopped:
            assert caller.line().startswith("PeerLostError")


@pytest.mark.crash
def test_a_caller_process_exits_while_its_server_is_stopped() -> None:
    with Peer("serve") as server, Peer("call", server.line()) as caller:
        assert caller.line() == "heard"
        server.stop()
        assert caller.line().startswith("PeerLostError")
        assert caller.finish(timeout_s=BOUND_S) == (0, "")
