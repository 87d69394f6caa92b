"""Numbered requests over one conversation: any number under way, answered in any order.

A request and its answer share a number. A service answers a call at once or with a future, so one
call that waits holds up no other. The thread that receives calls sends the answers that are there
at once: in a busy process every change of threads costs milliseconds. Another thread sends those
that futures bring, because a peer that does not receive would otherwise block whoever completes
the future.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import Any, NewType

import msgspec

from headrace.errors import HeadraceError, PeerLostError, UsageError, bug, from_wire, to_wire
from headrace.settings import ServiceSettings
from headrace.transport.channel import Channel
from headrace.transport.client import Client, Stream
from headrace.transport.message import C, Message

Conversation = NewType("Conversation", int)
"""The number of a conversation with a service; no later one gets it."""


class NumberedAnswer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    value: Any = None
    refusal: tuple[str, str, str] | None = None
    """The error, as `errors.to_wire` gives it."""


answers = msgspec.msgpack.Decoder(NumberedAnswer)


class RequestClient:
    """Asks a service of one kind at one address. Any task of any event loop may ask."""

    def __init__(
        self,
        address: str,
        kind: str,
        settings: ServiceSettings | None = None,
        *,
        client: Client | None = None,
    ) -> None:
        """With a `client`, which the caller closes, the conversation uses its connection."""
        self.address = address
        self.kind = kind
        self._settings = settings or ServiceSettings()
        self._shared = client
        self._client: Client | None = None
        self._channel: Channel[NumberedAnswer] | None = None
        self._numbers = count()
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._lost: HeadraceError | None = None

    async def start(self) -> None:
        """Connect. Starting twice does nothing."""
        if self._channel is None:
            await asyncio.to_thread(self.connect)

    def connect(self) -> None:
        """Connect, as `start` does. Connecting twice opens a second conversation."""
        client = self._shared or Client(self.address, self._settings)
        try:
            channel = client.converse(self.kind, answers)
        except BaseException:
            if not self._shared:
                client.close()
            raise
        self._client, self._channel, self._lost = client, channel, None
        threading.Thread(
            target=self._listen, args=(channel,), name=f"headrace-{self.kind}", daemon=True
        ).start()

    async def stop(self) -> None:
        """Leave the conversation. Stopping twice does nothing."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Leave the conversation, as `stop` does."""
        with self._lock:
            client, channel = self._client, self._channel
            self._client = self._channel = None
        if channel and self._shared:
            channel.leave()
        elif client:
            client.close()

    def give_up(self) -> None:
        """Close the client because the service is gone, though it may not have noticed that yet.

        Threads that still use it get PeerLostError.
        """
        with self._lock:
            self._lost = self._lost or self._gone()
        self.close()

    @property
    def is_lost(self) -> bool:
        """True if the conversation ended, and not by `close`."""
        return self._lost is not None

    def stream(self, call: object, replies: msgspec.msgpack.Decoder[C]) -> Stream[C]:
        """Ask for a stream of messages, over the same connection."""
        with self._lock:
            self._check_started()
            client = self._client
        assert client
        try:
            return client.stream(self.kind, (0, call), replies)
        except UsageError:
            if self._lost:  # Another thread closed it just now.
                raise self._lost from None
            raise

    async def ask(self, call: object, bodies: Iterable[Any] = ()) -> Any:
        """Return the service's answer, or raise the error that it refused with."""
        return await asyncio.wrap_future(self.submit(call, bodies))

    def submit(self, call: object, bodies: Iterable[Any] = ()) -> Future[Any]:
        """Send a call, and return the future of its answer."""
        asked: Future[Any] = Future()
        with self._lock:
            self._check_started()
            channel = self._channel
            number = next(self._numbers)
            self._asked[number] = asked
        assert channel
        try:
            channel.send((number, call), bodies)
        except BaseException:
            with self._lock:
                self._asked.pop(number, None)
            raise
        return asked

    def _check_started(self) -> None:
        if self._lost:  # Another thread may have closed a client that was lost.
            raise self._lost
        if self._channel is None:
            raise UsageError(f"the client of {self.kind} is not started", do="start it first")

    def _gone(self) -> PeerLostError:
        return PeerLostError(
            f"{self.kind} at {self.address} is gone", do="start the pipeline again"
        )

    def _listen(self, channel: Channel[NumberedAnswer]) -> None:
        lost: HeadraceError = self._gone()
        try:
            while (message := channel.receive()) is not None:
                with self._lock:
                    asked = self._asked.pop(message.control.number, None)
                if asked and asked.set_running_or_notify_cancel():
                    _settle(asked, message.control)
        except HeadraceError as error:
            lost = error
        except Exception as error:  # noqa: BLE001  whoever waits is told
            lost = bug(f"{self.kind} at {self.address}", error)
        with self._lock:
            if self._channel is channel:
                self._lost = lost
            waiting = list(self._asked.values())
            self._asked.clear()
        for asked in waiting:
            if asked.set_running_or_notify_cancel():
                asked.set_exception(lost)


def _settle(asked: Future[Any], answer: NumberedAnswer) -> None:
    if answer.refusal:
        asked.set_exception(from_wire(*answer.refusal))
    else:
        asked.set_result(answer.value)


class RequestService(ABC):
    """A `transport.Service` whose callers are `RequestClient`s."""

    requests: msgspec.msgpack.Decoder[Any]
    """Decodes `tuple[int, Call]`."""

    def __init__(self) -> None:
        self._conversations = count(1)

    @abstractmethod
    def carry_out(self, call: Any, bodies: tuple[Any, ...], caller: Conversation) -> Any:
        """Return the answer to a call, or a future of it. Calls of one caller come in order."""

    @abstractmethod
    def end(self, caller: Conversation) -> None:
        """Learn that a caller left or is lost. No call of it comes afterwards."""

    def converse(self, channel: Channel[Any]) -> None:
        caller = Conversation(next(self._conversations))
        outgoing: SimpleQueue[NumberedAnswer | None] = SimpleQueue()
        sender = threading.Thread(
            target=_send_answers, args=(channel, outgoing), name=f"answer {channel.peer}"
        )
        sender.daemon = True
        sender.start()
        try:
            while (message := channel.receive()) is not None:
                if answer := self._accept(message, caller, outgoing):
                    # A caller that is gone wants no answer, but all calls that it made carried out.
                    with suppress(HeadraceError):
                        _send(channel, answer)
        finally:
            self.end(caller)
            outgoing.put(None)
        sender.join()

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        raise UsageError(f"{type(request).__name__} is not a stream", do="converse")

    def _accept(
        self,
        message: Message[Any],
        caller: Conversation,
        outgoing: SimpleQueue[NumberedAnswer | None],
    ) -> NumberedAnswer | None:
        """Return the answer, or None if a future puts it into `outgoing` later."""
        number, call = message.control
        try:
            done = self.carry_out(call, message.bodies, caller)
        except Exception as error:  # noqa: BLE001  the caller is told
            return _refuse(number, call, error)
        if not isinstance(done, Future):
            return NumberedAnswer(number, done)

        def answer(future: Future[Any]) -> None:
            if future.cancelled():
                return  # whoever cancels knows that the caller is gone
            if error := future.exception():
                outgoing.put(_refuse(number, call, error))
            else:
                outgoing.put(NumberedAnswer(number, future.result()))

        done.add_done_callback(answer)
        return None


def _refuse(number: int, call: object, error: BaseException) -> NumberedAnswer:
    if not isinstance(error, HeadraceError):
        error = bug(type(call).__name__, Exception(f"{type(error).__name__}: {error}"))
    return NumberedAnswer(number, refusal=to_wire(error))


def _send_answers(channel: Channel[Any], outgoing: SimpleQueue[NumberedAnswer | None]) -> None:
    while (answer := outgoing.get()) is not None:
        try:
            _send(channel, answer)
        except HeadraceError:
            # The caller is gone, and so is whoever wanted the answer.
            return


def _send(channel: Channel[Any], answer: NumberedAnswer) -> None:
    try:
        channel.send(answer)
    except UsageError as error:
        # An answer that no message holds; or the conversation is closed, and this fails too.
        channel.send(NumberedAnswer(answer.number, refusal=to_wire(error)))
