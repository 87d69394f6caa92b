"""`headrace serve`: own a workspace, for as long as others need it."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path
from typing import Annotated

import typer

import headrace as hr
from headrace.cli.opening import DEFAULT_PLACE, PlaceOption
from headrace.cli.output import JsonOption, as_example, print_fields, print_json, print_line
from headrace.cli.stopping import until_stopped
from headrace.errors import UsageError
from headrace.journal.places import is_address
from headrace.journal.site import Site


def register(app: typer.Typer) -> None:
    example = "headrace serve -w ./bank --host 10.0.0.5 --port 7070"
    app.command(epilog=as_example(example))(serve)


def serve(
    host: Annotated[str, typer.Option(help="Listen here.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    token: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_TOKEN",
            show_envvar=False,
            show_default=False,
            help="What callers must present; better in HEADRACE_TOKEN. Default: a new one.",
        ),
    ] = "",
    tls_cert: Annotated[
        str, typer.Option(metavar="PEM", show_default=False, help="With --tls-key: TLS only.")
    ] = "",
    tls_key: Annotated[str, typer.Option(metavar="PEM", show_default=False)] = "",
    json: JsonOption = False,
    workspace: PlaceOption = DEFAULT_PLACE,
) -> None:
    """Serve a workspace until Ctrl-C.

    Makes this process its owner, which other processes and machines work through.
    """
    if is_address(workspace):
        raise UsageError(f"{workspace} is served already", do="name a directory")
    service = hr.ServiceSettings(
        host=host,
        port=port,
        token=token or secrets.token_urlsafe(32),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_root=tls_cert,
    )
    with (
        until_stopped(),
        hr.open(workspace, settings=hr.Settings(service=service)) as ws,
    ):
        address = ws.address
        if address is None:
            raise _owned_already(workspace)
        # A token that was given is known already, and need not be on anybody's screen.
        shown = {} if token else {"token": service.token}
        if json:
            print_json({"address": address, "process": os.getpid(), **shown})
        else:
            print_fields({"workspace": Path(workspace).absolute(), "address": address, **shown})
            print_line("serving it until Ctrl-C")
        threading.Event().wait()


def _owned_already(place: str) -> UsageError:
    owner = Site(Path(place).absolute()).owner()
    who = f"process {owner.process} at {owner.address}" if owner else "another process"
    return UsageError(
        f"{place} is owned by {who}, which serves it", do="use it there, or end that process first"
    )
