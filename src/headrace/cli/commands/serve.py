"""`headrace serve`: owns a workspace and serves it to other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import headrace as hr
from headrace.cli.interruption import run_aside, until_stopped
from headrace.cli.options.service_options import (
    LOOPBACK,
    NEW_TOKEN,
    HostOption,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    service_settings,
    token_option,
    wait_for_callers,
)
from headrace.cli.options.workspace_options import DEFAULT_WORKSPACE, WorkspaceOption
from headrace.cli.render.output import JsonOption, as_example, print_note
from headrace.errors import UsageError
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.location.workspace_ref import is_address


def register(app: typer.Typer) -> None:
    example = "headrace serve -w ./bank --host 10.0.0.5 --port 7070"
    app.command(epilog=as_example(example))(serve)


def serve(
    host: HostOption = LOOPBACK,
    port: PortOption = 0,
    token: Annotated[
        str, token_option("HEADRACE_TOKEN", "The token that callers must send", NEW_TOKEN)
    ] = "",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stand by while another process owns the workspace.")
    ] = False,
    json: JsonOption = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
) -> None:
    """Serve a workspace until Ctrl-C.

    This process becomes the owner, which other processes and machines work through. With --wait it
    stands by until the current owner is gone, and then takes over.
    """
    if is_address(workspace):
        raise UsageError(f"{workspace} is served already", do="name a workspace directory")
    service = service_settings(host, port, token, tls_cert, tls_key)
    directory = WorkspaceDirectory(Path(workspace).absolute())
    with until_stopped():
        if wait:
            _stand_by(workspace, directory)
        with hr.Workspace(workspace, hr.Settings(service=service), directory=directory) as ws:
            if ws.address is None:
                raise _owned_already(workspace, directory)
            wait_for_callers(
                ws.address,
                "" if token else service.token,
                doing="serving it",
                about={"workspace": directory.root},
                as_json=json,
            )


def _stand_by(location: str, directory: WorkspaceDirectory) -> None:
    """Wait until this process has the lock. Ctrl-C and SIGTERM end the process."""
    directory.prepare(create=True)
    if not directory.try_lock():
        print_note(f"waiting for {_owner(directory)} to end, which owns {location}")
        run_aside(directory.wait_for_lock, stop=lambda: None, grace_s=0)


def _owned_already(location: str, directory: WorkspaceDirectory) -> UsageError:
    return UsageError(
        f"{location} is owned by {_owner(directory)}, which serves it",
        do="use it there, or end that process first, or stand by with --wait",
    )


def _owner(directory: WorkspaceDirectory) -> str:
    owner = directory.owner()
    return f"process {owner.process} at {owner.address}" if owner else "another process"
