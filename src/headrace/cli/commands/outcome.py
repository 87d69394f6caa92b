"""`headrace outcome`: says what became of a commit in doubt."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options.workspace_options import (
    DEFAULT_WORKSPACE,
    TlsRootOption,
    TokenOption,
    WorkspaceOption,
    check_is_workspace,
    open_workspace,
)
from headrace.cli.render.output import JsonOption, as_example, print_json, print_line
from headrace.errors import CommitOutcome, InDoubtError, TransportError, WorkspaceError
from headrace.journal.write.commit_id import parse_commit_id


def register(app: typer.Typer) -> None:
    example = "headrace outcome 0a1b2c3d-5d2f9c0e7a11-18a3c5e07b1d2f00-0ce1f0a2b3c4d5e6"
    app.command(epilog=as_example(example))(outcome)


def outcome(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The id in the error of the commit in doubt.")
    ],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to keep asking.")] = 30.0,
    json: JsonOption = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Say what became of a commit in doubt.

    Prints committed, rolled back or partial (some documents of an append outside of transactions
    are there). A commit that did not happen never will. Exits with 3 if it is still in doubt.
    """
    parse_commit_id(id)
    check_is_workspace(workspace)
    found = _ask(id, timeout, workspace, token, tls_root)
    if json:
        print_json({"id": id, "outcome": found})
    else:
        print_line(found.value)


def _ask(id: str, timeout_s: float, workspace: str, token: str, tls_root: str) -> CommitOutcome:
    try:
        with open_workspace(workspace, token, tls_root) as ws:
            return ws.outcome(id, timeout_s)
    except (TransportError, WorkspaceError) as error:
        raise InDoubtError(
            f"nobody knows yet whether {id} committed: {error.what}",
            do=f"{error.do}, then ask again",
        ) from error
