"""Options that name the workspace of a command, and how a command opens it."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

import headrace as hr
from headrace.cli.options.service_options import token_option
from headrace.errors import NotFoundError, UsageError, WorkspaceError
from headrace.journal.location.workspace_ref import check_location, is_address
from headrace.storage import Objects, open_objects

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
ObjectsOption = Annotated[
    str,
    typer.Option(
        "--objects",
        metavar="PLACE",
        show_default=False,
        help="Objects of no workspace, instead: a directory, or s3://bucket/prefix.",
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
    return _with_opened(command, open_workspace)


@contextmanager
def open_stored(
    objects: ObjectsOption = "",
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> Iterator[Objects]:
    """Open the objects of a workspace, or those that a location names."""
    if objects:
        yield _existing_objects(objects)
        return
    with open_workspace(workspace, token, tls_root) as ws:
        yield ws.objects


def _existing_objects(location: str) -> Objects:
    """Open objects. Raises NotFoundError for a directory that is not there: opening makes it."""
    path = location.removeprefix("file://")
    if "://" not in path and not Path(path).is_dir():
        raise NotFoundError(
            f"there is no directory {location}", do="name one that holds objects, or s3://…"
        )
    return open_objects(location)


def on_objects(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a workspace or objects, and the objects as argument."""
    return _with_opened(command, open_stored)


def _with_opened(
    command: Callable[..., None], opener: Callable[..., AbstractContextManager[Any]]
) -> Callable[..., None]:
    """Give a command the options of an opener, and what it opens as first argument."""
    options = inspect.signature(opener, eval_str=True).parameters
    naming = {name: each for name, each in options.items() if name != "create"}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def opened(**given: Any) -> None:
        try:
            with opener(**{name: given[name] for name in naming}) as found:
                command(found, **{each.name: given[each.name] for each in own})
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
