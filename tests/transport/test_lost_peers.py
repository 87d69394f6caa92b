"""Peers are killed or stopped, as real processes, because the kernel's part in it matters."""

from __future__ import annotations

import signal
import socket
import threading
import time

import pytest

from headrace.errors import PeerLostError
from headrace.settings import ServiceSettings
from headrace.transport import Channel, Client, Server
from tests.transport.echo_service import CALM, REPLIES, SWIFT, Echo, Say, say
from tests.transport.peer_process import Peer

pytestmark = pytest.mark.crash

MARGIN_S = 20.0
"""Long enough for a busy machine, and less than a minute of silence."""


def test_a_killed_caller_is_lost_to_the_service_at_once(server: Server, echo: Echo) -> None:
    with Peer("call", server.address) as peer:
        assert peer.line() == "heard"
        killed = time.monotonic()
        peer.signal(signal.SIGKILL)
        assert isinstance(echo.ends.get(timeout=MARGIN_S), PeerLostError)
        assert time.monotonic() - killed < MARGIN_S


def test_a_killed_server_is_lost_to_a_caller_that_waits() -> None:
    with Peer("serve") as peer:
        address = peer.line()
        # Much sooner than the silence would end the wait.
        with Client(address, ServiceSettings(silence_s=60)) as client:
            channel = client.converse("echo", REPLIES)
            say(channel, "hello")
            killed = time.monotonic()
            threading.Thread(target=peer.signal, args=(signal.SIGKILL,)).start()
            with pytest.raises(PeerLostError, match=f"echo at {address}"):
                channel.receive()
            assert time.monotonic() - killed < MARGIN_S


def test_a_stopped_caller_is_lost_after_the_silence_and_its_threads_are_freed(
    swift_server: Server, echo: Echo
) -> None:
    with Peer("call", swift_server.address) as peer:
        assert peer.line() == "heard"
        before = {t.name for t in threading.enumerate()}
        assert any("echo caller" in name for name in before)
        peer.stop()
        stopped = time.monotonic()
        end = echo.ends.get(timeout=MARGIN_S)
        assert isinstance(end, PeerLostError)
        assert "was silent for 0.5 s" in end.what
        assert 0.3 < time.monotonic() - stopped < SWIFT.silence_s + MARGIN_S
        for thread in threading.enumerate():
            if "echo caller" in thread.name:
                thread.join(MARGIN_S)
                assert not thread.is_alive()


def test_a_caller_that_was_stopped_for_too_long_finds_itself_cut_off(
    swift_server: Server, echo: Echo
) -> None:
    with Peer("call", swift_server.address) as peer:
        assert peer.line() == "heard"
        peer.stop()
        assert isinstance(echo.ends.get(timeout=MARGIN_S), PeerLostError)
        peer.signal(signal.SIGCONT)
        assert peer.line().startswith("PeerLostError")


def test_a_stopped_caller_does_not_disturb_another(swift_server: Server, echo: Echo) -> None:
    with (
        Client(swift_server.address, SWIFT) as client,
        client.converse("echo", REPLIES) as channel,
        Peer("call", swift_server.address) as peer,
    ):
        assert peer.line() == "heard"
        peer.stop()
        assert isinstance(echo.ends.get(timeout=MARGIN_S), PeerLostError)
        assert say(channel, "still here") == "still here"


def test_a_stopped_server_is_lost_after_the_silence_to_whoever_receives_or_sends() -> None:
    with Peer("serve") as peer, Client(peer.line(), SWIFT) as client:
        receiving, sending = (client.converse("echo", REPLIES) for _ in range(2))
        say(receiving, "hello")
        peer.stop()
        stopped = time.monotonic()
        with pytest.raises(PeerLostError, match=r"was silent for 0\.5 s"):
            receiving.receive()
        assert 0.3 < time.monotonic() - stopped < SWIFT.silence_s + MARGIN_S
        with pytest.raises(PeerLostError, match=r"was silent for 0\.5 s"):
            flood(sending)
        assert time.monotonic() - stopped < SWIFT.silence_s + 2 * MARGIN_S


def test_a_killed_server_frees_a_sender_that_never_receives() -> None:
    with Peer("serve") as peer, Client(peer.line(), CALM) as client:
        channel = client.converse("echo", REPLIES)
        raised: list[type[BaseException]] = []

        def send() -> None:
            try:
                flood(channel)
            except PeerLostError as error:
                raised.append(type(error))

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(1.0)
        assert sender.is_alive()
        peer.signal(signal.SIGKILL)
        sender.join(MARGIN_S)
        assert raised == [PeerLostError]


def flood(channel: Channel[Say]) -> None:
    while True:
        channel.send(Say("x"), [bytes(1 << 20)])


def test_a_server_that_is_stopped_before_the_opening_is_lost_too() -> None:
    with Peer("serve") as peer, Client(peer.line(), SWIFT) as client:
        peer.stop()
        with pytest.raises(PeerLostError, match=r"cannot be reached|was silent"):
            client.converse("echo", REPLIES)


def test_nobody_at_the_address_is_a_lost_peer_that_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    begun = time.monotonic()
    with (
        Client(f"grpc://127.0.0.1:{port}", SWIFT) as client,
        pytest.raises(PeerLostError, match=f"grpc://127.0.0.1:{port}.*refused"),
    ):
        client.converse("echo", REPLIES)
    assert time.monotonic() - begun < MARGIN_S


def test_a_client_reaches_a_server_that_comes_back() -> None:
    with Server({"echo": Echo()}, SWIFT) as first:
        address = first.address
    port = int(address.rpartition(":")[2])
    with Client(address, SWIFT) as client:
        with pytest.raises(PeerLostError):
            client.converse("echo", REPLIES)
        settings = ServiceSettings(port=port, heartbeat_s=0.05, silence_s=0.5)
        with Server({"echo": Echo()}, settings):
            deadline = time.monotonic() + 30
            while True:
                try:
                    channel = client.converse("echo", REPLIES)
                    break
                except PeerLostError:
                    assert time.monotonic() < deadline
            assert say(channel, "again") == "again"
