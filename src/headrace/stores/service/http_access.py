"""Who may call an HTTP service, and how much they may send.

With a token, every call must carry it: `Authorization: Bearer TOKEN`. Without one the service
listens on loopback only, and refuses calls that a web page of another site makes through a browser
of this machine.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import (
    AccessError,
    ExistsError,
    HeadraceError,
    NotFoundError,
    QueueFullError,
    StorageError,
    TransportError,
    UsageError,
)
from headrace.settings import MIB, ServiceSettings
from headrace.transport.access import is_loopback

BODY_BYTES_MAX = 64 * MIB
"""Calls with a larger body are refused."""

_STATUS = (
    (AccessError, 401),
    (NotFoundError, 404),
    (ExistsError, 409),
    (UsageError, 400),
    (QueueFullError, 429),
    (StorageError, 503),
    (TransportError, 503),
)


def status_of(error: HeadraceError) -> int:
    """Return the HTTP status that tells an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_response(status: int, kind: str, text: str) -> Response:
    """Return an error as one line of JSON, with the fields that Prometheus has."""
    body = {"status": "error", "errorType": kind, "error": " ".join(text.split())}
    return Response(json.dumps(body) + "\n", status, media_type="application/json")


class HttpAccess:
    """ASGI middleware that refuses calls before anything else looks at them."""

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, body_bytes_max: int = BODY_BYTES_MAX
    ) -> None:
        self._app = app
        self._expected = f"Bearer {settings.token}".encode() if settings.token else b""
        self._host = settings.host
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Nothing here speaks WebSocket.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        body = _LimitedBody(receive, self._body_bytes_max)
        sending = _WatchedSend(send)
        try:
            await self._app(scope, body, sending)
        except _BodyTooLargeError:
            if sending.has_begun:
                raise
            await self._too_large()(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._expected:
            presented = headers.getlist("authorization")
            if len(presented) != 1 or not hmac.compare_digest(
                presented[0].encode("latin-1"), self._expected
            ):
                refused = error_response(401, "unauthorized", "access refused; send the token")
                refused.headers["WWW-Authenticate"] = "Bearer"
                return refused
        elif not self._is_local(headers):
            return error_response(
                403, "forbidden", "the call came through another site; serve with a token"
            )
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._body_bytes_max:
            return self._too_large()
        return None

    def _is_local(self, headers: Headers) -> bool:
        """Return True unless a page of another site had a browser make the call."""
        named = headers.get("host", self._host)
        name = named.rpartition(":")[0] if named.rpartition(":")[2].isdecimal() else named
        is_named_here = is_loopback(name.strip("[]")) or name == self._host
        return is_named_here and headers.get("sec-fetch-site") != "cross-site"

    def _too_large(self) -> Response:
        text = f"the body has more than {self._body_bytes_max} bytes; send it in parts"
        return error_response(413, "too_large", text)


class _BodyTooLargeError(Exception):
    """The body goes on beyond the limit."""


class _LimitedBody:
    """Counts what is received."""

    def __init__(self, receive: Receive, bytes_max: int) -> None:
        self._receive = receive
        self._left = bytes_max

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _BodyTooLargeError
        return message


class _WatchedSend:
    """Knows whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Any) -> None:
        self.has_begun = True
        await self._send(message)
