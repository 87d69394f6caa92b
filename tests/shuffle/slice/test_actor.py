"""A Slice as its Session and other members' Queues meet it, behind its service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from headrace.errors import PeerLostError, ProtocolError, StorageError
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.settings import ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.messages import MemberAt
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.slice import handler
from headrace.transport import Channel, Client, LocalClient
from tests.shuffle.builders import source
from tests.shuffle.fake_member import fake_member, open_well
from tests.shuffle.real_task import SOON_S, Task, swift


@contextmanager
def asked(task: Task, other: str) -> Iterator[Channel[Any]]:
    """Ask member 0 for a Slice. The Queue of member 1 is at another address."""
    read = source(0, "a", key=("n",), schema=task.workspace.collection("a").schema)
    addresses = task.addresses[0], other
    members = tuple(MemberAt(*each) for each in zip(addresses, split_evenly(2), strict=True))
    opening = messages.OpenSlice(
        "s", 0, members, (read,), task.workspace.reach(), ShuffleSettings()
    )
    with Client(task.addresses[0], swift()) as client:
        session = client.converse(messages.SLICE, msgspec.msgpack.Decoder(messages.FromSlice))
        session.send(opening)
        yield session
        session.leave()


@contextmanager
def opened(task: Task, other: str) -> Iterator[Channel[Any]]:
    """Open the Slice of member 0. The Queue of member 1 is at another address."""
    with asked(task, other) as session:
        assert isinstance(receive(session), messages.Opened)
        yield session


def why_ended(address: str) -> str:
    """Return what a Slice hears that opens the Queue of the ended Session late."""
    replies = msgspec.msgpack.Decoder(messages.FromQueue)
    with Client(address, swift()) as client:
        channel = client.converse(messages.QUEUE, replies)
        channel.send(messages.OpenQueue("s", 0, 1, 2, (), ShuffleSettings()))
        with pytest.raises(PeerLostError) as refusal:
            channel.receive(SOON_S)
    return refusal.value.what


def receive(session: Channel[Any]) -> Any:
    message = session.receive(SOON_S)
    assert message
    return message.control


# proves G8
def test_before_it_is_told_what_to_read_a_slice_does_not_say_that_it_has_nothing(
    task: Task,
) -> None:
    """Else Queues would write the others' documents, and its own earlier ones would be late."""
    received: SimpleQueue[Any] = SimpleQueue()

    def listen(channel: Channel[Any], asked: messages.OpenQueue) -> None:
        channel.send(messages.QueueOpened(asked.session))
        while (message := channel.receive()) is not None:
            received.put(message.control)

    with fake_member(queue=listen) as fake, opened(task, fake.address) as session:
        session.send(messages.Starving(True, 0))
        for number in (1, 2):
            # When it gives the second answer, it has done all that the first message caused.
            session.send(messages.AskStatus(number))
            status = receive(session)
            assert (status.number, status.settled) == (number, False)
        session.send(messages.Starving(False, 0))
        session.send(messages.StartRead([]))
        assert [received.get(timeout=SOON_S) for _ in range(3)] == [
            messages.Starving(True, 0),
            messages.Starving(False, 0),
            messages.Bounds((INFINITE,)),
        ]


# proves G13
def test_the_session_hears_why_a_slice_ends_before_any_queue_sees_that_it_left(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another member, which does not know the cause, might tell the Session first."""
    has_heard = threading.Event()
    left: SimpleQueue[bool] = SimpleQueue()

    class Leaving(Client):
        def close(self) -> None:
            left.put(has_heard.wait(SOON_S))
            super().close()

    class LeavingHere(LocalClient):
        def close(self) -> None:
            left.put(has_heard.wait(SOON_S))
            super().close()

    monkeypatch.setattr(handler, "Client", Leaving)
    monkeypatch.setattr(handler, "LocalClient", LeavingHere)
    with fake_member(queue=open_well) as fake, opened(task, fake.address) as session:
        session.send(
            messages.OpenSlice("s", 0, (), (), WorkspaceRef(None, "", ""), ShuffleSettings())
        )
        with pytest.raises(ProtocolError, match="a Slice got OpenSlice after it was opened"):
            session.receive(2 * SOON_S)
        has_heard.set()
        assert [left.get(timeout=SOON_S) for _ in range(2)] == [True, True]
        assert "a Slice got OpenSlice after it was opened" in why_ended(task.addresses[0])


# proves G13
def test_the_session_hears_why_a_slice_cannot_open_before_its_own_queue_has_ended(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a Slice that opens that Queue late tells the Session that its caller has left."""
    has_heard = threading.Event()
    waited: SimpleQueue[bool] = SimpleQueue()

    class LeavingHere(LocalClient):
        def wait(self) -> None:
            waited.put(has_heard.wait(SOON_S))
            super().wait()

    def refuse(channel: Channel[Any], opening: messages.OpenQueue) -> None:
        raise StorageError("no space left", do="free space")

    monkeypatch.setattr(handler, "LocalClient", LeavingHere)
    with fake_member(queue=refuse) as fake, asked(task, fake.address) as session:
        with pytest.raises(StorageError, match="the Queue of member 1: no space left"):
            session.receive(2 * SOON_S)
        has_heard.set()
        assert waited.get(timeout=SOON_S)
