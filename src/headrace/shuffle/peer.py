"""A conversation with a Slice or Queue of a member. Its errors name who that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.transport import ChannelEnd, Client, LocalClient, Message
from headrace.transport.message import Body


class Peer:
    """The calling side of a channel; `name` says who answers."""

    def __init__(
        self,
        name: str,
        client: Client | LocalClient,
        kind: str,
        replies: msgspec.msgpack.Decoder[Any],
    ) -> None:
        self.name = name
        try:
            self._channel: ChannelEnd[Any] = client.converse(kind, replies)
        except HeadraceError as error:
            raise self._named(error) from error

    def send(self, control: object, bodies: Iterable[Body] = ()) -> None:
        try:
            self._channel.send(control, bodies)
        except HeadraceError as error:
            raise self._named(error) from error

    def receive(self) -> Message[Any] | None:
        try:
            return self._channel.receive()
        except HeadraceError as error:
            raise self._named(error) from error

    def leave(self) -> None:
        self._channel.leave()

    def fail(self, error: HeadraceError) -> None:
        self._channel.fail(error)

    def _named(self, error: HeadraceError) -> HeadraceError:
        return type(error)(f"{self.name}: {error.what}", do=error.do)
