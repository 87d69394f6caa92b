"""Serves the master to workers in other processes. A conversation is a worker's lease."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from headrace.errors import REPORT, PeerLostError, ProtocolError, UsageError
from headrace.pipeline.master import messages
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.messages import Answer, Join, Leave, Request
from headrace.settings import ServiceSettings
from headrace.transport import Channel, Client, Message


class ControlService:
    """`transport.Service` over a master."""

    requests = messages.requests

    def __init__(self, master: Master) -> None:
        self._master = master

    def converse(self, channel: Channel[Request]) -> None:
        opening = channel.receive()
        if opening is None:
            return
        join = opening.control
        if not isinstance(join, Join):
            raise ProtocolError(
                f"a worker began with {type(join).__name__}, not with Join", do=REPORT
            )
        answer = self._master.join(join)
        channel.send(answer)
        if isinstance(answer, Leave):
            return
        channel.on_end(self._master.wake)
        try:
            has_left = self._serve(channel, join.worker)
        except BaseException:
            self._master.lose(join.worker)
            raise
        if has_left:
            self._master.leave(join.worker)
        else:
            self._master.lose(join.worker)

    def _serve(self, channel: Channel[Request], worker: str) -> bool:
        """Answer until the worker is told to leave; False if it went without."""
        while (message := channel.receive()) is not None:
            answer = self._master.handle(worker, message.control, lambda: channel.ended)
            channel.send(answer)
            if isinstance(answer, Leave):
                return True
        return False

    def stream(
        self, request: Any, channel: Channel[Request]
    ) -> Generator[Message[Any], None, None]:
        raise UsageError(f"{type(request).__name__} is not a stream", do="converse")


class RemoteControl:
    """The conversation of one worker, in the worker's process."""

    def __init__(self, address: str, settings: ServiceSettings) -> None:
        self._client = Client(address, settings)
        self._channel = self._client.converse(messages.CONTROL, messages.answers)

    async def ask(self, request: Request) -> Answer:
        return await asyncio.to_thread(self._ask, request)

    def _ask(self, request: Request) -> Answer:
        self._channel.send(request)
        message = self._channel.receive()
        if message is None:
            raise PeerLostError("the master has closed the conversation", do="start again")
        return message.control

    def close(self) -> None:
        self._client.close()


class LocalControl:
    """The conversation of one worker with a master in the same process."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._worker = ""
        self._has_left = False
        self._is_closed = False

    async def ask(self, request: Request) -> Answer:
        answer = await asyncio.to_thread(self._ask, request)
        self._has_left |= isinstance(answer, Leave)
        return answer

    def _ask(self, request: Request) -> Answer:
        if self._is_closed:
            raise PeerLostError("the master has given this worker up", do="start another")
        if isinstance(request, Join):
            answer = self._master.join(request)
            self._worker = request.worker if not isinstance(answer, Leave) else ""
            return answer
        return self._master.handle(self._worker, request, lambda: self._is_closed)

    def close(self) -> None:
        """End the lease. A worker that was not told to leave counts as lost."""
        if self._is_closed:
            return
        self._is_closed = True
        self._master.wake()
        if self._worker:
            (self._master.leave if self._has_left else self._master.lose)(self._worker)
