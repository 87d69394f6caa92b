"""Options that name the workspace of a command, and how a command opens it."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

import headrace as hr
from headrace.cli.options.service_options import token_option
from headrace.errors import UsageError, WorkspaceError
from headrace.journal.location.workspace_ref import check_location, is_address

DEFAULT_WORKSPACE = "./headrace-data"


def checked_location(location: str) -> str:
    try:
        return check_location(location)
    except UsageError as error:
        raise typer.BadParameter(f"{error.what}: {error.do}") from None


WorkspaceOption = Annotated[
    str,
    typer.Option(
        "--workspace",
        "-w",
        envvar="HEADRACE_WORKSPACE",
        show_envvar=False,
        metavar="PLACE",
        callback=checked_location,
        help="The workspace: its directory, or the address of its owner.",
    ),
]
TokenOption = Annotated[str, token_option("HEADRACE_TOKEN", "The token of the owner at an address")]
TlsRootOption = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_TLS_ROOT",
        show_envvar=False,
        show_default=False,
        metavar="PEM",
        help="Trust this certificate at a grpc+tls:// address.",
    ),
]


def open_workspace(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
    *,
    create: bool = False,
) -> hr.Workspace:
    if not create:
        check_is_workspace(workspace)
    settings = hr.Settings(service=hr.ServiceSettings(tls_root=tls_root))
    return hr.open(workspace, token=token, settings=settings, create=create)


def check_is_workspace(location: str) -> None:
    """Raise WorkspaceError unless `location` is a workspace, so that only reading it makes none."""
    if not is_address(location) and not Path(location, "workspace.json").exists():
        raise WorkspaceError(
            f"{location} is not a workspace",
            do="name one with --workspace (a directory, or grpc://host:port),"
            " or make one with `headrace collections create`",
        )


def on_workspace(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a workspace, and the open workspace as first argument.

    A command that declares one of these options itself also receives its value.
    """
    options = inspect.signature(open_workspace, eval_str=True).parameters
    naming = {name: each for name, each in options.items() if name != "create"}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def opened(**given: Any) -> None:
        try:
            with open_workspace(**{name: given[name] for name in naming}) as ws:
                command(ws, **{each.name: given[each.name] for each in own})
        except hr.InDoubtError as error:
            raise _with_command(error, given["workspace"]) from error

    others = [each for each in own if each.name not in naming]
    shown = [each.replace(kind=each.KEYWORD_ONLY) for each in (*others, *naming.values())]
    opened.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    opened.__annotations__ = {each.name: each.annotation for each in shown}
    return opened


def _with_command(error: hr.InDoubtError, location: str) -> hr.InDoubtError:
    """Return the error with the command that asks for the outcome instead of the call."""
    is_default = location in (DEFAULT_WORKSPACE, os.environ.get("HEADRACE_WORKSPACE"))
    where = "" if is_default else f" --workspace {shlex.quote(location)}"
    call, command = f"ws.outcome('{error.id}')", f"`headrace outcome {error.id}{where}`"
    return hr.InDoubtError(error.what, do=error.do.replace(call, command))
