"""Numbered requests: who sends their answers, and what becomes of the calls of a lost caller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from headrace.errors import DataError, HeadraceError, PeerLostError, UsageError
from headrace.testing.crash import eventually
from headrace.transport import Channel, Client, Conversation, RequestClient, RequestService, Server
from tests.transport.echo_service import CALM

WAIT_S = 30.0


class Later(RequestService):
    """Answers numbers at once, and names when the test says so."""

    requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple[int, int | str])

    def __init__(self) -> None:
        super().__init__()
        self.calls: queue.Queue[int | str] = queue.Queue()
        self.futures: dict[str, Future[str]] = {}
        self.go_on = threading.Event()
        self.go_on.set()
        self.ends: queue.Queue[Conversation] = queue.Queue()

    def converse(self, channel: Channel[Any]) -> None:
        self.channel = channel
        super().converse(channel)

    def carry_out(self, call: Any, bodies: tuple[Any, ...], caller: Conversation) -> Any:
        assert self.go_on.wait(WAIT_S)
        self.calls.put(call)
        if isinstance(call, int):
            if call < 0:
                raise DataError(f"{call} is negative", do="ask for more")
            return call + 1
        return self.futures.setdefault(call, Future())

    def end(self, caller: Conversation) -> None:
        self.ends.put(caller)


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def server(later: Later) -> Iterator[Server]:
    with Server({"later": later}, CALM) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[RequestClient]:
    client = RequestClient(server.address, "later", CALM)
    client.connect()
    yield client
    client.close()


def test_a_call_that_waits_holds_up_no_other(later: Later, client: RequestClient) -> None:
    waiting = client.submit("slow")
    assert [client.submit(number).result(WAIT_S) for number in range(3)] == [1, 2, 3]
    assert not waiting.done()
    later.futures["slow"].set_result("done")
    assert waiting.result(WAIT_S) == "done"


def test_a_refusal_is_of_one_call_only(client: RequestClient) -> None:
    with pytest.raises(DataError, match="-7 is negative; ask for more"):
        client.submit(-7).result(WAIT_S)
    assert client.submit(7).result(WAIT_S) == 8


def test_the_calls_of_a_caller_that_is_gone_are_carried_out(
    later: Later, server: Server, client: RequestClient
) -> None:
    later.go_on.clear()
    for number in range(5):
        client.submit(number)
    eventually(lambda: len(later.channel._inbox._items) == 4, WAIT_S, "all calls have arrived")
    client.close()
    eventually(lambda: later.channel.ended, WAIT_S, "the service knows that the caller is gone")
    later.go_on.set()
    assert [later.calls.get(timeout=WAIT_S) for _ in range(5)] == list(range(5))
    later.ends.get(timeout=WAIT_S)


def test_a_client_that_was_closed_is_not_started(client: RequestClient) -> None:
    listener = next(each for each in threading.enumerate() if each.name == "headrace-later")
    client.close()
    listener.join(WAIT_S)
    assert not client.is_lost
    with pytest.raises(UsageError, match="not started"):
        client.submit(1)
    with pytest.raises(UsageError, match="not started"):
        client.stream(1, msgspec.msgpack.Decoder(int))


@pytest.mark.parametrize("knows", [True, False])
def test_a_client_that_was_lost_says_so_after_it_was_closed(
    server: Server, client: RequestClient, knows: bool
) -> None:
    """Another thread may close it, and may know before the client does that the peer is gone."""
    if knows:
        server.close()
        eventually(lambda: client.is_lost, WAIT_S, "the client knows")
        client.close()
    else:
        client.give_up()
    with pytest.raises(PeerLostError):
        client.submit(1)
    with pytest.raises(PeerLostError):
        client.stream(1, msgspec.msgpack.Decoder(int))
    assert client.is_lost


def test_a_stream_that_was_asked_for_while_the_client_was_lost_says_so(
    client: RequestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Client.stream

    def begin_late(*arguments: Any) -> Any:
        client.give_up()
        return begin(*arguments)

    monkeypatch.setattr(Client, "stream", begin_late)
    with pytest.raises(PeerLostError):
        client.stream(1, msgspec.msgpack.Decoder(int))


def test_several_clients_may_share_a_connection_and_leave_it_open(
    later: Later, server: Server
) -> None:
    with Client(server.address, CALM) as shared:
        first, second = (RequestClient(server.address, "later", client=shared) for _ in range(2))
        first.connect()
        second.connect()
        assert first.submit(1).result(WAIT_S) == 2
        first.close()
        later.ends.get(timeout=WAIT_S)
        assert second.submit(2).result(WAIT_S) == 3
        with pytest.raises(UsageError, match="not started"):
            first.submit(1)
        waiting = second.submit("slow")
    with pytest.raises(HeadraceError, match="was closed"):
        waiting.result(WAIT_S)
    later.ends.get(timeout=WAIT_S)
