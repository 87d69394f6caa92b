"""`headrace serve`: own a workspace, for as long as others need it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import headrace as hr
from headrace.cli.access import token_option
from headrace.cli.listening import (
    LOOPBACK,
    NEW_TOKEN,
    HostOption,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    service_settings,
    wait_for_callers,
)
from headrace.cli.opening import DEFAULT_PLACE, PlaceOption
from headrace.cli.output import JsonOption, as_example
from headrace.cli.stopping import until_stopped
from headrace.errors import UsageError
from headrace.journal.places import is_address
from headrace.journal.site import Site


def register(app: typer.Typer) -> None:
    example = "headrace serve -w ./bank --host 10.0.0.5 --port 7070"
    app.command(epilog=as_example(example))(serve)


def serve(
    host: HostOption = LOOPBACK,
    port: PortOption = 0,
    token: Annotated[
        str, token_option("HEADRACE_TOKEN", "What callers must present", NEW_TOKEN)
    ] = "",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    json: JsonOption = False,
    workspace: PlaceOption = DEFAULT_PLACE,
) -> None:
    """Serve a workspace until Ctrl-C.

    Makes this process its owner, which other processes and machines work through.
    """
    if is_address(workspace):
        raise UsageError(f"{workspace} is served already", do="name a directory")
    service = service_settings(host, port, token, tls_cert, tls_key)
    with until_stopped(), hr.open(workspace, settings=hr.Settings(service=service)) as ws:
        if ws.address is None:
            raise _owned_already(workspace)
        wait_for_callers(
            ws.address,
            "" if token else service.token,
            doing="serving it",
            about={"workspace": Path(workspace).absolute()},
            as_json=json,
        )


def _owned_already(place: str) -> UsageError:
    owner = Site(Path(place).absolute()).owner()
    who = f"process {owner.process} at {owner.address}" if owner else "another process"
    return UsageError(
        f"{place} is owned by {who}, which serves it", do="use it there, or end that process first"
    )
