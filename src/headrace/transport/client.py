"""The client of the services at one address."""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from typing import Any, Generic, Self

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headrace.errors import PeerLostError, UsageError
from headrace.settings import ServiceSettings
from headrace.transport.access import call_options, client_options
from headrace.transport.channel import Channel
from headrace.transport.flight_errors import FLIGHT_ERRORS, translate
from headrace.transport.message import C, Message, Opening
from headrace.transport.watchdog import Watchdog

CLOSE_S = 2.0
"""How long `close` waits for cancelled calls, which end in milliseconds."""


class Client:
    """Holds any number of conversations and streams with one server, over one connection.

    It connects when the first of them opens. It breaks off those that still run when the client is
    closed or the interpreter exits.
    """

    def __init__(self, address: str, settings: ServiceSettings) -> None:
        self.address = address
        self._settings = settings
        self._options = call_options(settings)
        try:
            self._flight: Any = fl.connect(address, **client_options(settings))
        except pa.ArrowException as error:
            raise UsageError(
                f"{address!r} is not an address: {error}", do="use the address of a Server"
            ) from error
        self._watchdog = Watchdog(settings)
        self._lock = threading.Lock()
        self._channels: set[Channel[Any]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        atexit.register(self.close)

    def converse(self, kind: str, replies: msgspec.msgpack.Decoder[C]) -> Channel[C]:
        """Open a conversation with the service `kind`, and wait until the service accepts it."""
        return self._open(Opening(kind), replies)

    def stream(self, kind: str, request: object, replies: msgspec.msgpack.Decoder[C]) -> Stream[C]:
        """Ask the service `kind` for a stream of messages."""
        return Stream(self._open(Opening(kind, msgspec.msgpack.encode(request)), replies))

    def close(self) -> None:
        """Break off what still runs, and return within a moment."""
        with self._lock:
            self._closed = True
            channels, threads = list(self._channels), self._threads
        for channel in channels:
            channel.break_off(PeerLostError(f"the client of {self.address} was closed"))
        # The process aborts if a thread takes a connection down while the interpreter exits.
        deadline = time.monotonic() + CLOSE_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._watchdog.close()
        # Flight disconnects when nothing refers to its client, not in its `close`.
        self._flight = None
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self, opening: Opening, replies: msgspec.msgpack.Decoder[C]) -> Channel[C]:
        peer = f"{opening.kind} at {self.address}"
        command = fl.FlightDescriptor.for_command(msgspec.msgpack.encode(opening))
        flight = self._flight
        self._check_open()
        try:
            writer, reader = flight.do_exchange(command, self._options)
        except FLIGHT_ERRORS as error:
            raise translate(error, peer) from error
        channel = Channel(
            reader,
            writer,
            replies,
            peer=peer,
            calling=True,
            cut_off=reader.cancel,
            settings=self._settings,
        )
        reading = threading.Thread(
            target=self._run, args=(channel, reader, writer), name=f"read {peer}", daemon=True
        )
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._channels.add(channel)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._threads.append(reading)
                self._watchdog.watch(channel)
                reading.start()
        if is_closed:
            # `close` did not know of this call, which the server has by now.
            _cancel(reader, writer)
            self._check_open()
        channel.wait_until_accepted()
        return channel

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the client of {self.address} is closed", do="make another client")

    def _run(self, channel: Channel[Any], reader: Any, writer: Any) -> None:
        try:
            channel.run()
            _cancel(reader, writer)
        finally:
            self._watchdog.forget(channel)
            with self._lock:
                self._channels.discard(channel)


def _cancel(reader: Any, writer: Any) -> None:
    reader.cancel()
    # Flight prints a warning for each writer that nobody closed.
    with suppress(*FLIGHT_ERRORS):
        writer.close()


class Stream(Generic[C]):
    """Iterates over the messages of a server stream. Raises where the stream broke."""

    def __init__(self, channel: Channel[C]) -> None:
        self._channel = channel

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[C]:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout_s: float | None = None) -> Message[C] | None:
        """Return the next message as `Channel.receive` does; None at the end."""
        return self._channel.receive(timeout_s)

    def close(self) -> None:
        """Leave the stream, from any thread; the server then closes the service's generator."""
        self._channel.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
