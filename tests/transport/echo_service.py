"""A service that echoes what it receives, and records how each conversation ended."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from typing import Any

import msgspec

from headrace.errors import DataError, HeadraceError
from headrace.settings import ServiceSettings
from headrace.transport import Channel, ChannelEnd, Message

SWIFT = ServiceSettings(heartbeat_s=0.05, silence_s=0.5)
"""Notices a silent peer soon."""

CALM = ServiceSettings(silence_s=60)
"""Tolerates a busy machine."""


class Say(msgspec.Struct, frozen=True, tag=True):
    text: str


class Break(msgspec.Struct, frozen=True, tag=True):
    """Makes the service raise a DataError, or an error that is not Headrace's."""

    unforeseen: bool = False


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Makes the service stop receiving until `Echo.released` is set."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Makes the service return."""


class Count(msgspec.Struct, frozen=True, tag=True):
    """Asks for a stream of that many messages, and then for waiting or an error."""

    number: int
    then_wait: bool = False
    then_break: bool = False


Request = Say | Break | Hold | Leave | Count
REPLIES: msgspec.msgpack.Decoder[Say] = msgspec.msgpack.Decoder(Say)


class Echo:
    requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)

    def __init__(self) -> None:
        self.heard: queue.Queue[ChannelEnd[Any]] = queue.Queue()
        self.ends: queue.Queue[HeadraceError | None] = queue.Queue()
        self.streams_closed = threading.Semaphore(0)
        self.released = threading.Event()

    def converse(self, channel: ChannelEnd[Any]) -> None:
        try:
            self._answer(channel)
        except HeadraceError as error:
            self.ends.put(error)
            raise
        self.ends.put(None)

    def _answer(self, channel: ChannelEnd[Any]) -> None:
        while (message := channel.receive()) is not None:
            self.heard.put(channel)
            match message.control:
                case Say():
                    channel.send(message.control, message.bodies)
                case Break(unforeseen=True):
                    raise ValueError("not foreseen")
                case Break():
                    raise DataError("segment 7 is damaged", do="restore it")
                case Hold():
                    self.released.wait()
                case Leave():
                    return

    def stream(self, request: Count, channel: Channel[Any]) -> Generator[Message[Say], None, None]:
        woken = threading.Event()
        channel.on_end(woken.set)
        try:
            for number in range(request.number):
                yield Message(Say(str(number)), (number.to_bytes(4, "little"),))
            if request.then_wait:
                woken.wait()
            if request.then_break:
                raise DataError("segment 7 is damaged", do="restore it")
        finally:
            self.streams_closed.release()


def say(channel: Channel[Say], text: str, *bodies: bytes) -> str:
    """Send a message and return the echo."""
    channel.send(Say(text), bodies)
    answer = channel.receive(timeout_s=30)
    assert answer is not None
    assert [b.to_pybytes() for b in answer.bodies] == list(bodies)
    return answer.control.text
