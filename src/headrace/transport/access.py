"""Access to a service: the token, TLS, and listening on loopback unless the settings say more."""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from headrace.errors import UsageError
from headrace.settings import ServiceSettings

RECONNECT_MS_MAX = 1000
"""A client finds a server that came back within this time."""

_HEADER = "authorization"


class TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call of any kind that does not carry the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = _bearer(token)

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        presented = headers.get(_HEADER, [])
        if len(presented) != 1 or not hmac.compare_digest(_octets(presented[0]), self._expected):
            raise fl.FlightUnauthenticatedError("access refused")


def check_listening(settings: ServiceSettings) -> None:
    """Raise UsageError if other machines could call without a token, or if TLS is set by halves."""
    if not settings.token and not is_loopback(settings.host):
        raise UsageError(
            f"listening on {settings.host} without a token would let anyone in",
            do="set a token, or listen on 127.0.0.1",
        )
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise UsageError(
            "tls_certificate and tls_key belong together", do="set both of them, or none"
        )


def server_options(settings: ServiceSettings) -> dict[str, Any]:
    """Return the arguments of a Flight server."""
    options: dict[str, Any] = {}
    if settings.token:
        options["middleware"] = {"token": TokenCheck(settings.token)}
    if settings.tls_certificate:
        options["tls_certificates"] = [(_pem(settings.tls_certificate), _pem(settings.tls_key))]
    return options


def client_options(settings: ServiceSettings) -> dict[str, Any]:
    """Return the arguments of a Flight client."""
    options: dict[str, Any] = {
        "generic_options": [
            # gRPC takes its time-out for connecting from here; its own is 20 s.
            ("grpc.min_reconnect_backoff_ms", round(settings.silence_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        ]
    }
    if settings.tls_root:
        options["tls_root_certs"] = _pem(settings.tls_root)
    return options


def call_options(settings: ServiceSettings) -> Any:
    """Return the options that every call carries."""
    headers = [(_HEADER.encode(), _bearer(settings.token))] if settings.token else []
    return fl.FlightCallOptions(headers=headers)


def _bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


def _octets(header: str | bytes) -> bytes:
    return header if isinstance(header, bytes) else header.encode()


def is_loopback(host: str) -> bool:
    """Return True if only this machine can call what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", do="name a readable PEM file"
        ) from error
