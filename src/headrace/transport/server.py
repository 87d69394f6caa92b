"""Serves conversations and streams of any number of services at one address.

Each conversation has three threads: Flight's own, which only reads, the channel's writer, and the
service's. So a service learns at any time that its peer is lost, and cutting the peer's connection
always frees Flight's thread. That bounds `close`: a Flight server waits for its handlers without
limit, in `shutdown` and again when the interpreter exits.
"""

from __future__ import annotations

import atexit
import errno
import logging
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from typing import Any, Protocol, Self

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headrace.errors import HeadraceError, NotFoundError, PeerLostError, TransportError, UsageError
from headrace.settings import ServiceSettings
from headrace.transport.access import check_listening, server_options
from headrace.transport.channel import Channel, ChannelEnd
from headrace.transport.disconnection import sever
from headrace.transport.flight_errors import refuse
from headrace.transport.message import Message, Opening
from headrace.transport.watchdog import Watchdog

logger = logging.getLogger(__name__)
_opening_decoder = msgspec.msgpack.Decoder(Opening)

SHUTDOWN_S = 2.0
"""How long `close` waits for Flight, which needs milliseconds once every peer is gone."""


class Service(Protocol):
    """Answers the callers of one kind. Each call runs in a thread of its own.

    The caller raises the same error that the service raised.
    """

    requests: msgspec.msgpack.Decoder[Any]
    """The decoder of callers' messages."""

    def converse(self, channel: Channel[Any]) -> None:
        """Hold a conversation; returning closes it."""

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        """Answer one request with any number of messages.

        The server closes the generator at its next yield once the caller has left. A generator that
        waits for something registers with `channel.on_end`, which wakes it. It does not send or
        receive by itself.
        """


class Server:
    """Listens from its construction until it is closed or the interpreter exits."""

    def __init__(self, services: Mapping[str, Service], settings: ServiceSettings) -> None:
        check_listening(settings)
        self._services = dict(services)
        self._settings = settings
        self._changed = threading.Condition()
        self._channels: dict[Channel[Any], str] = {}
        self._conversing: dict[Channel[Any], str] = {}
        self._threads: set[threading.Thread] = set()
        self._closing = False
        options = server_options(settings)
        self._watchdog = Watchdog(settings)
        scheme = "grpc+tls" if settings.tls_certificate else "grpc"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"{scheme}://{host}:{settings.port}"
        try:
            self._flight = _FlightServer(self._exchange, self.address, **options)
        except (pa.ArrowException, OSError) as error:
            self._watchdog.close()
            raise _not_listening(settings, error) from error
        self.address = f"{scheme}://{host}:{self._flight.port}"
        atexit.register(self.close)

    @property
    def conversations(self) -> int:
        """The number of conversations now, without streams."""
        return len(self._conversing)

    def conversations_of(self, kind: str) -> int:
        """Return the number of conversations now with one service."""
        with self._changed:
            return sum(each == kind for each in self._conversing.values())

    def close(self, grace_s: float = 1.0) -> None:
        """End every conversation with an error, and return within `grace_s` and a moment.

        The server cuts off peers that do not leave within `grace_s`, and leaves a service that does
        not return in its daemon thread.
        """
        with self._changed:
            if self._closing:
                return
            self._closing = True
            channels = list(self._channels)
        for channel in channels:
            channel.fail(self._closing_error())
        if not self._wait_until_idle(grace_s):
            with self._changed:
                peers = set(self._channels.values())
            for peer in peers:
                # Leave a peer that cannot be cut off.
                with suppress(OSError):
                    self._cut_off(peer)
            self._wait_until_idle(SHUTDOWN_S)
        stopping = threading.Thread(target=self._flight.shutdown, name="shutdown", daemon=True)
        stopping.start()
        stopping.join(SHUTDOWN_S)
        self._watchdog.close()
        atexit.unregister(self.close)
        if stopping.is_alive() or self._threads:
            logger.warning(
                "%s closed while %d services still run", self.address, len(self._threads)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wait_until_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._channels and not self._threads, timeout_s
            )

    def _exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Hold one conversation, in Flight's thread."""
        opening, service = self._open(descriptor.command)
        peer = context.peer()
        channel: Channel[Any] = Channel(
            reader,
            writer,
            service.requests,
            peer=f"{opening.kind} caller {peer}",
            calling=False,
            cut_off=lambda: self._cut_off(peer),
            settings=self._settings,
        )
        serving = threading.Thread(
            target=self._serve,
            args=(service, opening, channel),
            name=f"serve {channel.peer}",
            daemon=True,
        )
        with self._changed:
            if self._closing:
                raise refuse(self._closing_error())
            self._channels[channel] = peer
            if opening.request is None:
                self._conversing[channel] = opening.kind
            self._threads.add(serving)
        self._watchdog.watch(channel)
        serving.start()
        try:
            channel.run()
        finally:
            self._watchdog.forget(channel)
            with self._changed:
                del self._channels[channel]
                self._conversing.pop(channel, None)
                self._changed.notify_all()

    def _open(self, command: bytes | None) -> tuple[Opening, Service]:
        try:
            opening = _opening_decoder.decode(command or b"")
        except msgspec.MsgspecError as error:
            raise refuse(
                TransportError(f"the call is malformed: {error}", do="use a Client")
            ) from error
        service = self._services.get(opening.kind)
        if service is None:
            raise refuse(
                NotFoundError(
                    f"{self.address} has no service {opening.kind!r}",
                    do=f"ask for one of {', '.join(sorted(self._services))}",
                )
            )
        return opening, service

    def _serve(self, service: Service, opening: Opening, channel: Channel[Any]) -> None:
        """Serve one conversation, in the service's thread."""
        try:
            if opening.request is None:
                serve(lambda: service.converse(channel), channel)
            else:
                request = opening.request
                serve(lambda: _stream(service, request, channel), channel)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _cut_off(self, peer: str) -> None:
        sever(peer, self._flight.port)

    def _closing_error(self) -> PeerLostError:
        return PeerLostError(f"{self.address} is closing", do="connect again later")


def serve(answer: Callable[[], None], channel: ChannelEnd[Any]) -> None:
    """Let a service answer a caller, and end the conversation as the service ended."""
    try:
        answer()
        channel.leave()
    except HeadraceError as error:
        logger.info("%s: %s", channel.peer, error)
        channel.fail(error)
    except Exception as error:
        logger.exception("the service of %s failed", channel.peer)
        channel.fail(error)


def _stream(service: Service, request: bytes, channel: Channel[Any]) -> None:
    try:
        decoded = service.requests.decode(request)
    except msgspec.MsgspecError as error:
        raise TransportError(
            f"{channel.peer} sent a malformed request: {error}",
            do="run the same version of Headrace on both sides",
        ) from error
    with closing(service.stream(decoded, channel)) as messages:
        for message in messages:
            if channel.ended:
                return
            channel.send(message.control, message.bodies)


def _not_listening(settings: ServiceSettings, error: Exception) -> UsageError:
    """Ask the kernel again why it refused to listen: Flight does not tell."""
    host, port = settings.host, settings.port
    try:
        for family, kind, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as refusal:
        if refusal.errno == errno.EADDRINUSE:
            return UsageError(
                f"port {port} of {host} is in use",
                do="end the process that listens there, or choose another port",
            )
        reason = refusal.strerror or str(refusal)
    else:
        reason = str(error)
    return UsageError(
        f"cannot listen on {host}:{port}: {reason}",
        do="choose an address of this machine, a free port and valid PEM files",
    )


class _FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, exchange: Callable[..., None], location: str, **options: Any) -> None:
        # Set this first: calls may come before the construction is over.
        self._exchange = exchange
        super().__init__(location, **options)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._exchange(context, descriptor, reader, writer)
