"""`headrace doctor`: checks this machine, and a workspace on it."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from headrace.cli.doctor_checks import (
    check_disk,
    check_java,
    check_packages,
    check_python,
    check_workspace,
)
from headrace.cli.options.workspace_options import (
    DEFAULT_WORKSPACE,
    TlsRootOption,
    TokenOption,
    WorkspaceOption,
)
from headrace.cli.render.output import JsonOption, as_example, print_json, print_table
from headrace.journal.location.workspace_ref import is_address

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace doctor -w ./bank"))(doctor)


def doctor(
    json: JsonOption = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Check this machine and a workspace.

    It checks Python, Java, packages, the disk, and the workspace if there is one.
    """
    checks = [check_python(), check_java(), *check_packages()]
    is_local = not is_address(workspace)
    if is_local:
        checks += check_disk(Path(workspace).absolute())
    if not is_local or workspace != DEFAULT_WORKSPACE or Path(workspace).exists():
        checks += check_workspace(workspace, token, tls_root)
    if json:
        print_json(checks)
    else:
        print_table(
            ((Text(c.status, _STYLES[c.status]), c.name, c.found, c.do) for c in checks),
            ("", "check", "found", "what to do"),
        )
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)
