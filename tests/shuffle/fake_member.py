"""A service that stands in for a member and answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.errors import (
    NotFoundError,
    StorageError,
)
from headrace.shuffle import messages
from headrace.transport import Channel, Message, Server
from tests.shuffle.real_task import swift


class FakeService:
    """Answers one kind of conversation with the function it is given."""

    requests: msgspec.msgpack.Decoder[Any]

    def __init__(self, requests: type, answer: Callable[[Channel[Any], Any], None]) -> None:
        self.requests = msgspec.msgpack.Decoder(requests)
        self._answer = answer

    def converse(self, channel: Channel[Any]) -> None:
        first = channel.receive()
        assert first is not None
        self._answer(channel, first.control)

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        raise NotFoundError("nothing", do="")


class Nonsense(msgspec.Struct, tag="nonsense"):
    """A message that no part of the protocol knows."""

    number: int = 0


def linger(channel: Channel[Any], _: Any = None) -> None:
    """Send nothing until the caller is gone."""
    over = threading.Event()
    channel.on_end(over.set)
    over.wait()


@contextmanager
def fake_member(
    slice: Callable[[Channel[Any], Any], None] = linger,
    queue: Callable[[Channel[Any], Any], None] = linger,
) -> Iterator[Server]:
    services = {
        messages.SLICE: FakeService(messages.ToSlice, slice),  # type: ignore[arg-type]
        messages.QUEUE: FakeService(messages.ToQueue, queue),  # type: ignore[arg-type]
        messages.CONSUMER: FakeService(messages.ToQueue, linger),  # type: ignore[arg-type]
    }
    with Server(services, swift()) as server:
        yield server


def refuse(_: Channel[Any], __: Any) -> None:
    raise StorageError("no space left", do="make room")


def open_well(channel: Channel[Any], opening: Any) -> None:
    """Open as a member does, then send nothing else."""
    if isinstance(opening, messages.OpenSlice):
        channel.send(messages.Opened(opening.session))
    else:
        channel.send(messages.QueueOpened(opening.session))
    linger(channel)


def answer_for_another(channel: Channel[Any], opening: Any) -> None:
    if isinstance(opening, messages.OpenSlice):
        channel.send(messages.Opened("another"))
    else:
        channel.send(messages.QueueOpened("another"))
    linger(channel)


def answer_wrongly(channel: Channel[Any], opening: Any) -> None:
    """Answer the opening with a message that may only come later."""
    is_slice = isinstance(opening, messages.OpenSlice)
    channel.send(messages.ProgressDelta(0) if is_slice else messages.Flushed(1))
    linger(channel)


def answer_nonsense(channel: Channel[Any], _: Any) -> None:
    channel.send(Nonsense())
    linger(channel)


def leave(_: Channel[Any], __: Any) -> None:
    """End the conversation without an answer."""
