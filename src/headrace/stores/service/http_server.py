"""Serves routes over HTTP from a thread of this process, for as long as somebody wants it."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from headrace.errors import HeadraceError, UsageError, bug
from headrace.settings import ServiceSettings
from headrace.stores.service.http_access import (
    BODY_BYTES_MAX,
    HttpAccess,
    error_response,
    status_of,
)
from headrace.transport.access import check_listening

logger = logging.getLogger(__name__)

_GRACE_S = 2
"""How long `close` waits for answers that are under way, and then again for the thread."""


class HttpServer:
    """Listens from its construction until it is closed."""

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        settings: ServiceSettings,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        check_listening(settings)
        app = Starlette(
            routes=routes,
            middleware=[Middleware(HttpAccess, settings, body_bytes_max)],
            exception_handlers={
                HeadraceError: _tell_error,
                HTTPException: _tell_http_error,
                Exception: _tell_bug,
            },
        )
        listener = _listen(settings)
        scheme = "https" if settings.tls_certificate else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"{scheme}://{host}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=settings.tls_certificate or None,
            ssl_keyfile=settings.tls_key or None,
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            listener.close()
            raise UsageError(
                f"the TLS certificate or its key cannot be used: {error.strerror or error}",
                do="name a certificate and its key as PEM files",
            ) from error
        self._listener = listener
        self._server = _ThreadServer(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name=f"http {self.address}", daemon=True
        )
        self._thread.start()
        self._server.ready.wait()

    def close(self) -> None:
        """Answer the calls that are under way, and stop listening. Closing twice does nothing."""
        self._server.should_exit = True
        self._thread.join(2 * _GRACE_S)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(_GRACE_S)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _ThreadServer(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()


def _listen(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {settings.port} of {settings.host} is in use",
                do="end the process that listens there, or choose another port",
            ) from error
        raise UsageError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            do="choose an address of this machine",
        ) from error
    return listener


async def _tell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return error_response(status_of(error), type(error).__name__, str(error))


async def _tell_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}; see / for what there is"
    return error_response(error.status_code, "http", what)


async def _tell_bug(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(500, "internal", str(bug(request.url.path, error)))
