"""Options of commands that serve until Ctrl-C, and what those commands print."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import headrace as hr
from headrace.cli.interruption import wait
from headrace.cli.render.output import print_fields, print_json, print_line, print_warning
from headrace.errors import UsageError
from headrace.transport.access import is_loopback

LOOPBACK = "127.0.0.1"
NEW_TOKEN = " Default: a new one."


def token_option(variable: str, help: str, more: str = "") -> Any:
    """Return an option for a token, which may also be in the environment.

    Everybody on a machine sees its command lines.
    """
    return typer.Option(
        envvar=variable,
        show_envvar=False,
        show_default=False,
        help=f"{help}; better in {variable}.{more}",
    )


def pem_option(help: str = "") -> Any:
    """Return an option for a PEM file that must exist."""
    return typer.Option(
        metavar="PEM", show_default=False, exists=True, dir_okay=False, readable=True, help=help
    )


def _checked_host(host: str) -> str:
    if not host or "://" in host or host.count(":") == 1:
        raise typer.BadParameter(f"{host!r} is not a host: name one alone; --port is for its port")
    return host


HostOption = Annotated[str, typer.Option(callback=_checked_host, help="Listen on this address.")]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Listen on this port; 0 takes a free one.")
]
TlsCertOption = Annotated[Path | None, pem_option("Accept TLS only; needs --tls-key.")]
TlsKeyOption = Annotated[Path | None, pem_option("The key of --tls-cert.")]


def service_settings(
    host: str,
    port: int,
    token: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_root: Path | None = None,
) -> hr.ServiceSettings:
    """Return the settings that the options ask for.

    Without a token, make a new one. Without a root, trust the certificate itself.
    """
    if bool(tls_cert) != bool(tls_key):
        raise UsageError("--tls-cert and --tls-key belong together", do="give both or neither")
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
    """Print the address, and wait for ever. A token that the user gave is not printed."""
    shown = {"token": new_token} if new_token else {}
    if as_json:
        print_json({"address": address, "process": os.getpid(), **shown})
    else:
        print_fields({**(about or {}), "address": address, **shown})
        print_line(f"{doing} until Ctrl-C")
    wait(threading.Event())
