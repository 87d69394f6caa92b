from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from headrace.errors import (
    DataError,
    HeadraceError,
    NotFoundError,
    PeerLostError,
    TransportError,
    UsageError,
)
from headrace.settings import MIB
from headrace.transport import Client, Server
from headrace.transport.message import ENVELOPE, MessageBatch, Opening, encode_packet
from tests.transport.echo_service import REPLIES, SWIFT, Break, Echo, Hold, Leave, Say, say


@pytest.mark.parametrize(
    "bodies",
    [(), (b"",), (b"x",), (b"", b"ab", b""), (os.urandom(1 * MIB),), (os.urandom(64 * MIB),)],
    ids=["none", "empty", "one", "some empty", "1 MiB", "64 MiB"],
)
def test_bodies_come_back_as_they_were_sent(client: Client, bodies: tuple[bytes, ...]) -> None:
    with client.converse("echo", REPLIES) as channel:
        assert say(channel, "bodies", *bodies) == "bodies"


def test_messages_of_many_threads_all_arrive_in_the_order_of_each(client: Client) -> None:
    threads, each = 16, 500
    with client.converse("echo", REPLIES) as channel:

        def speak(thread: int) -> None:
            for number in range(each):
                channel.send(Say(f"{thread} {number}"), [b"%d" % number] * (number % 3))

        with ThreadPoolExecutor(threads) as speakers:
            spoken = [speakers.submit(speak, thread) for thread in range(threads)]
            heard: defaultdict[int, list[int]] = defaultdict(list)
            for _ in range(threads * each):
                message = channel.receive(timeout_s=30)
                assert message is not None
                thread, number = map(int, message.control.text.split())
                assert [b.to_pybytes() for b in message.bodies] == [b"%d" % number] * (number % 3)
                heard[thread].append(number)
            assert [future.result() for future in spoken] == [None] * threads
    assert heard == {thread: list(range(each)) for thread in range(threads)}


@pytest.mark.long
def test_two_hundred_conversations_at_once(client: Client) -> None:
    channels = [client.converse("echo", REPLIES) for _ in range(200)]
    for number, channel in enumerate(channels):
        channel.send(Say(str(number)))
    for number, channel in enumerate(channels):
        message = channel.receive(timeout_s=30)
        assert message is not None
        assert message.control.text == str(number)
    for channel in channels:
        channel.close()


def test_services_of_several_kinds_share_an_address() -> None:
    one, other = Echo(), Echo()
    with (
        Server({"one": one, "other": other}, SWIFT) as server,
        Client(server.address, SWIFT) as client,
        client.converse("other", REPLIES) as channel,
    ):
        say(channel, "hello")
        assert other.heard.qsize() == 1
        assert one.heard.empty()


def test_an_unknown_kind_is_refused_when_it_is_opened(client: Client) -> None:
    with pytest.raises(
        NotFoundError, match=r"grpc://.* has no service 'ehco'; ask for one of echo"
    ):
        client.converse("ehco", REPLIES)


def test_a_clean_close_is_no_error_and_the_service_hears_everything_before(
    client: Client, echo: Echo
) -> None:
    channel = client.converse("echo", REPLIES)
    for _ in range(1000):
        channel.send(Say("unanswered"))
    channel.close()
    assert echo.ends.get(timeout=10) is None
    assert echo.heard.qsize() == 1000
    assert channel.receive() is None
    with pytest.raises(UsageError, match="closed"):
        channel.send(Say("too late"))


def test_a_service_that_returns_closes_the_conversation(client: Client) -> None:
    channel = client.converse("echo", REPLIES)
    channel.send(Say("last"))
    channel.send(Leave())
    answer = channel.receive(timeout_s=10)
    assert answer is not None
    assert answer.control == Say("last")
    assert channel.receive(timeout_s=10) is None
    with pytest.raises(PeerLostError, match="closed the conversation"):
        channel.send(Say("to nobody"))
    channel.close()


def test_an_error_of_the_service_is_raised_here_as_the_same_error(client: Client) -> None:
    channel = client.converse("echo", REPLIES)
    channel.send(Say("before"))
    channel.send(Break())
    answer = channel.receive(timeout_s=10)
    assert answer is not None
    assert answer.control == Say("before")
    for action in (channel.receive, channel.close, lambda: channel.send(Say("after"))):
        with pytest.raises(DataError) as raised:
            action()
        assert (raised.value.what, raised.value.do) == ("segment 7 is damaged", "restore it")


def test_a_bug_of_the_service_reaches_the_caller_and_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    channel = client.converse("echo", REPLIES)
    channel.send(Break(unforeseen=True))
    with pytest.raises(HeadraceError, match="ValueError: not foreseen; report it"):
        channel.receive(timeout_s=10)
    assert [type(each.exc_info[1]) for each in caplog.records if each.exc_info] == [ValueError]


def test_an_error_raised_inside_a_conversation_is_told_to_the_service(
    client: Client, echo: Echo
) -> None:
    with pytest.raises(DataError), client.converse("echo", REPLIES):
        raise DataError("the caller's disk is damaged")
    told = echo.ends.get(timeout=10)
    assert isinstance(told, DataError)
    assert told.what == "the caller's disk is damaged"


def test_a_failure_while_the_caller_closes_is_raised_by_close(client: Client) -> None:
    channel = client.converse("echo", REPLIES)
    channel.send(Break())
    with pytest.raises(DataError):
        channel.close()


def test_a_client_that_breaks_off_is_lost_to_the_service(server: Server, echo: Echo) -> None:
    client = Client(server.address, SWIFT)
    say(client.converse("echo", REPLIES), "hello")
    client.close()
    assert isinstance(echo.ends.get(timeout=10), PeerLostError)


def test_a_stream_that_ends_without_close_is_a_lost_peer(server: Server, echo: Echo) -> None:
    with fl.connect(server.address) as flight:
        writer, reader = open_raw(flight)
        writer.done_writing()
        drain(reader)
        writer.close()
    end = echo.ends.get(timeout=10)
    assert isinstance(end, PeerLostError)
    assert "left without closing" in end.what


@pytest.mark.parametrize(
    "metadata",
    [
        b"junk",
        encode_packet(MessageBatch([b"junk"], [0])),
        encode_packet(MessageBatch([b"\x80"], [3])),
    ],
    ids=["no frame", "no control", "no bodies"],
)
def test_malformed_bytes_end_their_conversation_and_no_other(
    server: Server, client: Client, echo: Echo, metadata: bytes
) -> None:
    # proves G27
    other = client.converse("echo", REPLIES)
    with fl.connect(server.address) as flight:
        writer, reader = open_raw(flight)
        writer.write_metadata(metadata)
        assert b"sent a malformed message" in drain(reader)
        writer.close()
    end = echo.ends.get(timeout=10)
    assert type(end) is TransportError
    assert re.match("echo caller ipv4:127.0.0.1.* sent a malformed message", end.what)
    assert say(other, "still here") == "still here"
    other.close()


def test_a_control_that_the_service_does_not_know_is_malformed(client: Client) -> None:
    class Sing(msgspec.Struct, tag=True):
        tune: str

    channel = client.converse("echo", REPLIES)
    channel.send(Sing("la"))
    with pytest.raises(TransportError, match=r"sent a malformed message: .* 'Sing'"):
        channel.receive(timeout_s=10)


def test_a_malformed_opening_is_refused(server: Server, client: Client) -> None:
    with fl.connect(server.address) as flight:
        writer, reader = flight.do_exchange(fl.FlightDescriptor.for_command(b"junk"))
        with pytest.raises(fl.FlightError, match="the call is malformed"):
            reader.read_chunk()
        with pytest.raises(fl.FlightError):
            writer.close()
    client.converse("echo", REPLIES).close()


@pytest.mark.long
def test_a_sender_waits_for_a_service_that_does_not_receive(
    swift_server: Server, echo: Echo
) -> None:
    body, count = bytes(1 * MIB), 100
    sent: list[int] = []
    with Client(swift_server.address, SWIFT) as client:
        channel = client.converse("echo", REPLIES)
        channel.send(Hold())

        def send() -> None:
            for number in range(count):
                channel.send(Break() if number == count - 1 else Hold(), [body])
                sent.append(number)

        sender = threading.Thread(target=send)
        sender.start()
        # Wait three times as long as a silent peer may live: waiting is no silence.
        sender.join(3 * SWIFT.silence_s)
        assert sender.is_alive()
        assert len(sent) < 60
        echo.released.set()
        sender.join(30)
        with pytest.raises(DataError):
            channel.receive(timeout_s=30)


def test_on_end_calls_back_once_and_at_once_when_it_is_over(client: Client) -> None:
    channel = client.converse("echo", REPLIES)
    called = threading.Semaphore(0)
    channel.on_end(called.release)
    assert not channel.ended
    channel.send(Leave())
    assert called.acquire(timeout=10)
    assert channel.ended
    channel.on_end(called.release)
    assert called.acquire(blocking=False)
    channel.close()
    assert not called.acquire(blocking=False)


def test_a_receive_can_be_bounded_in_time(client: Client) -> None:
    with client.converse("echo", REPLIES) as channel:
        with pytest.raises(TimeoutError):
            channel.receive(timeout_s=0.01)
        assert say(channel, "still here") == "still here"


def open_raw(flight: fl.FlightClient) -> tuple[fl.FlightStreamWriter, fl.FlightStreamReader]:
    command = msgspec.msgpack.encode(Opening("echo"))
    writer, reader = flight.do_exchange(fl.FlightDescriptor.for_command(command))
    writer.begin(ENVELOPE)
    return writer, reader


def drain(reader: fl.FlightStreamReader) -> bytes:
    """Return everything that the service sent before it ended the call."""
    said = b""
    while True:
        try:
            said += reader.read_chunk().app_metadata.to_pybytes()
        except (StopIteration, pa.ArrowException):
            return said
