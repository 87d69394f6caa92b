"""Commands that others call until they are told to stop: their options, and what they say."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import headrace as hr
from headrace.cli.access import pem_option
from headrace.cli.interruption import wait
from headrace.cli.output import print_fields, print_json, print_line, print_warning
from headrace.errors import UsageError
from headrace.transport.access import is_loopback

LOOPBACK = "127.0.0.1"
NEW_TOKEN = " Default: a new one."


def _checked_host(host: str) -> str:
    if not host or "://" in host or host.count(":") == 1:
        raise typer.BadParameter(f"{host!r} is not a host: name one alone; --port is for its port")
    return host


HostOption = Annotated[str, typer.Option(callback=_checked_host, help="Listen here.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
TlsCertOption = Annotated[Path | None, pem_option("With --tls-key: TLS only.")]
TlsKeyOption = Annotated[Path | None, pem_option("Of the certificate.")]


def service_settings(
    host: str,
    port: int,
    token: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_root: Path | None = None,
) -> hr.ServiceSettings:
    """What the options say. Without a token, a new one; without a root, the certificate itself."""
    if bool(tls_cert) != bool(tls_key):
        raise UsageError("--tls-cert and --tls-key belong together", do="give both, or none")
    if not tls_cert and not is_loopback(host):
        print_warning(
            f"listening on {host} without TLS: tokens and documents travel in the clear;"
            " give --tls-cert and --tls-key"
        )
    root = tls_root or tls_cert
    return hr.ServiceSettings(
        host=host,
        port=port,
        token=token or secrets.token_urlsafe(32),
        tls_certificate=str(tls_cert or ""),
        tls_key=str(tls_key or ""),
        tls_root=str(root or ""),
    )


def wait_for_callers(
    address: str,
    new_token: str,
    *,
    doing: str,
    about: Mapping[str, object] | None = None,
    as_json: bool,
) -> None:
    """Say where, and wait. A token that was given is known, and need not be on any screen."""
    shown = {"token": new_token} if new_token else {}
    if as_json:
        print_json({"address": address, "process": os.getpid(), **shown})
    else:
        print_fields({**(about or {}), "address": address, **shown})
        print_line(f"{doing} until Ctrl-C")
    wait(threading.Event())
