from __future__ import annotations

import signal

import pytest

from headrace.errors import DataError, NotFoundError, PeerLostError, TransportError
from headrace.transport import Client, Server
from tests.transport.echo_service import REPLIES, SWIFT, Count, Echo, Say
from tests.transport.peer_process import Peer


def test_a_stream_yields_every_message_in_order_and_ends(client: Client, echo: Echo) -> None:
    received = list(client.stream("echo", Count(1000), REPLIES))
    assert [m.control for m in received] == [Say(str(n)) for n in range(1000)]
    assert [int.from_bytes(m.bodies[0], "little") for m in received] == list(range(1000))
    assert echo.streams_closed.acquire(timeout=10)


def test_closing_a_stream_half_way_closes_the_generator(client: Client, echo: Echo) -> None:
    with client.stream("echo", Count(10**9), REPLIES) as stream:
        assert next(stream).control == Say("0")
        assert not echo.streams_closed.acquire(blocking=False)
    assert echo.streams_closed.acquire(timeout=10)
    assert stream.receive() is None


def test_closing_a_stream_wakes_a_generator_that_waits(client: Client, echo: Echo) -> None:
    with client.stream("echo", Count(1, then_wait=True), REPLIES) as stream:
        assert next(stream).control == Say("0")
    assert echo.streams_closed.acquire(timeout=10)


@pytest.mark.long
def test_an_idle_stream_lives_on_heartbeats(swift_server: Server) -> None:
    with (
        Client(swift_server.address, SWIFT) as client,
        client.stream("echo", Count(0, then_wait=True), REPLIES) as stream,
        pytest.raises(TimeoutError),
    ):
        stream.receive(timeout_s=3 * SWIFT.silence_s)


def test_an_error_of_the_stream_arrives_behind_what_it_yielded(client: Client) -> None:
    stream = client.stream("echo", Count(2, then_break=True), REPLIES)
    assert [next(stream).control.text, next(stream).control.text] == ["0", "1"]
    with pytest.raises(DataError, match="segment 7 is damaged"):
        next(stream)


@pytest.mark.crash
def test_a_stream_whose_server_is_killed_does_not_look_complete() -> None:
    with Peer("serve") as peer, Client(peer.line(), SWIFT) as client:
        stream = client.stream("echo", Count(1, then_wait=True), REPLIES)
        next(stream)
        peer.signal(signal.SIGKILL)
        with pytest.raises(PeerLostError):
            next(stream)


def test_a_request_that_the_service_does_not_know_is_refused(client: Client) -> None:
    with pytest.raises(TransportError, match="sent a malformed request"):
        next(client.stream("echo", {"type": "Sing"}, REPLIES))


def test_a_stream_of_an_unknown_kind_is_refused(client: Client) -> None:
    with pytest.raises(NotFoundError):
        client.stream("ehco", Count(1), REPLIES)
