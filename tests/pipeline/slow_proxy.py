"""A TCP proxy on loopback that holds every request up for as long as a test says."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

_BYTES = 1 << 16


class SlowProxy:
    """Passes bytes on to a port. What clients send waits for `delay_s` before it is passed on."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self.delayed = 0
        """How often something was held up."""
        self._port = port
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                self._start(self._pass_on, client, server, True)
                self._start(self._pass_on, server, client, False)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                if is_request and self.delay_s:
                    self.delayed += 1
                    self._closing.wait(self.delay_s)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        # A shutdown wakes up whoever waits; a close would not.
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()
