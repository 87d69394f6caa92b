"""Conversations within one process end as those between two processes do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from headrace.errors import DataError, HeadraceError, PeerLostError, TransportError, UsageError
from headrace.settings import MIB
from headrace.transport import LocalClient
from headrace.transport.local_client import LocalChannel
from tests.transport.echo_service import REPLIES, Break, Echo, Hold, Leave, Say

SOON_S = 30


@pytest.fixture
def local(echo: Echo) -> Iterator[LocalClient]:
    client = LocalClient("here", echo.converse)
    yield client
    echo.released.set()
    client.close()


def send_all(channel: LocalChannel[Say]) -> None:
    for _ in range(9):
        channel.send(Say("x"), [bytes(4 * MIB)])


def ended(echo: Echo) -> HeadraceError | None:
    """Return what the service's last receive raised, or None if the caller left."""
    return echo.ends.get(timeout=SOON_S)


def test_a_message_arrives_as_it_was_sent(local: LocalClient) -> None:
    channel = local.converse("echo", REPLIES)
    said, body = Say("hello"), b"x" * MIB
    channel.send(said, [body, b""])
    message = channel.receive(SOON_S)
    assert message is not None
    assert message.control is said
    assert [bytes(each) for each in message.bodies] == [body, b""]
    assert message.bodies[0].address == pa.py_buffer(body).address, "the body was copied"


def test_messages_keep_their_order(local: LocalClient) -> None:
    channel = local.converse("echo", REPLIES)
    for number in range(1_000):
        channel.send(Say(str(number)))
    heard = [channel.receive(SOON_S) for _ in range(1_000)]
    assert [each and each.control.text for each in heard] == [str(n) for n in range(1_000)]


def test_send_waits_while_the_service_is_far_behind(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Hold())
    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(send_all, channel)
        with pytest.raises(TimeoutError):
            channel.receive(0.2)
        assert not sent.done()
        echo.released.set()
        for _ in range(9):
            assert channel.receive(SOON_S) is not None
        sent.result(SOON_S)


def test_the_service_hears_that_the_caller_left_and_may_still_answer(
    local: LocalClient, echo: Echo
) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Hold())
    channel.send(Say("late"))
    channel.leave()
    echo.released.set()
    assert ended(echo) is None
    with pytest.raises(UsageError, match=r"the conversation with echo at here is closed"):
        channel.send(Say("more"))


def test_the_caller_hears_that_the_service_returned(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Say("before"))
    channel.send(Leave())
    assert channel.receive(SOON_S) is not None
    assert channel.receive(SOON_S) is None
    with pytest.raises(PeerLostError, match=r"echo at here closed the conversation"):
        channel.send(Say("more"))


def test_the_error_of_a_service_reaches_its_caller_after_its_answers(local: LocalClient) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Say("before"))
    channel.send(Break())
    assert channel.receive(SOON_S) is not None
    for _ in range(2):
        with pytest.raises(DataError, match="segment 7 is damaged"):
            channel.receive(SOON_S)
    with pytest.raises(DataError, match="segment 7 is damaged"):
        channel.send(Say("more"))


def test_an_unforeseen_error_reaches_the_caller_too(local: LocalClient) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Break(unforeseen=True))
    with pytest.raises(HeadraceError, match="not foreseen"):
        channel.receive(SOON_S)


def test_the_error_of_a_caller_reaches_the_service(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.fail(DataError("the caller is lost", do="look there"))
    error = ended(echo)
    assert isinstance(error, DataError)
    assert error.what == "the caller is lost"


def test_the_first_error_stays_on_both_sides(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Break())
    with pytest.raises(DataError, match="segment 7 is damaged"):
        channel.receive(SOON_S)
    channel.fail(DataError("something else", do="look there"))
    local.close()
    with pytest.raises(DataError, match="segment 7 is damaged"):
        channel.receive(SOON_S)
    assert isinstance(ended(echo), DataError)


def test_a_side_that_failed_receives_nothing_more(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Say("answered"))
    channel.send(Leave())
    assert ended(echo) is None
    channel.fail(DataError("too late", do="look there"))
    with pytest.raises(DataError, match="too late"):
        channel.receive(SOON_S)


def test_a_conversation_that_had_ended_stays_as_it_ended(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Leave())
    assert channel.receive(SOON_S) is None
    local.wait()
    local.close()
    assert channel.receive(SOON_S) is None


def test_waiting_lasts_until_the_service_has_left(local: LocalClient, echo: Echo) -> None:
    channel = local.converse("echo", REPLIES)
    channel.send(Hold())
    assert echo.heard.get(timeout=SOON_S)
    local.close()
    with ThreadPoolExecutor(1) as waiter:
        waiting = waiter.submit(local.wait)
        assert not waiting.done()
        echo.released.set()
        waiting.result(SOON_S)
    assert isinstance(ended(echo), PeerLostError)


def test_closing_breaks_off_what_still_runs(local: LocalClient, echo: Echo) -> None:
    channels = [local.converse("echo", REPLIES) for _ in range(3)]
    with ThreadPoolExecutor(1) as receiver:
        waiting = receiver.submit(channels[0].receive)
        local.close()
        with pytest.raises(TransportError, match="the client of here was closed"):
            waiting.result(SOON_S)
    assert [type(ended(echo)) for _ in channels] == [PeerLostError] * 3
    with pytest.raises(UsageError, match="the client of here is closed"):
        local.converse("echo", REPLIES)
    local.close()
