"""`headrace shuffle`: runs members, and shows the Sessions that run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import headrace as hr
from headrace.cli.interruption import until_stopped
from headrace.cli.options.service_options import (
    LOOPBACK,
    NEW_TOKEN,
    HostOption,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    pem_option,
    service_settings,
    token_option,
    wait_for_callers,
)
from headrace.cli.options.workspace_options import (
    DEFAULT_WORKSPACE,
    WorkspaceOption,
    check_is_workspace,
)
from headrace.cli.render.output import (
    JsonOption,
    as_example,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from headrace.cli.render.units import counted, format_size
from headrace.errors import UsageError
from headrace.journal.location.workspace_ref import is_address
from headrace.shuffle.session_registry import RunningSession, running_sessions

app = typer.Typer(no_args_is_help=True, help="Run members, and show running Sessions.")


@app.command(epilog=as_example("headrace shuffle member --port 7071 --dir /var/tmp"))
def member(
    host: HostOption = LOOPBACK,
    port: PortOption = 0,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            "-d",
            file_okay=False,
            show_default=False,
            help="Keep queue files here while it runs. Default: the temporary directory.",
        ),
    ] = None,
    token: Annotated[
        str, token_option("HEADRACE_MEMBER_TOKEN", "The token of all members", NEW_TOKEN)
    ] = "",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_root: Annotated[
        Path | None, pem_option("Trust this certificate. Default: --tls-cert.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run one member until Ctrl-C.

    Sessions of any workspace that the member can reach may use it. All members of a Session share a
    token.
    """
    service = service_settings(host, port, token, tls_cert, tls_key, tls_root)
    root = directory or Path(tempfile.gettempdir())
    with until_stopped(), hr.Member(root, service) as running:
        new_token = "" if token else service.token
        wait_for_callers(running.address, new_token, doing="a member", as_json=json)


@app.command(epilog=as_example("headrace shuffle status --json"))
def status(workspace: WorkspaceOption = DEFAULT_WORKSPACE, json: JsonOption = False) -> None:
    """Show the Sessions that run on a workspace: what they read, and what they wait for."""
    if is_address(workspace):
        raise UsageError(
            f"the owner at {workspace} does not know the Sessions of its callers",
            do="name the workspace directory, on its machine",
        )
    check_is_workspace(workspace)
    found = list(running_sessions(Path(workspace).absolute()))
    if json:
        print_json([_described(each) for each in found])
    elif not found:
        print_line("no Session runs")
    for index, session in enumerate([] if json else found):
        if index:
            print_line("")
        _print_session(session)


def _described(session: RunningSession) -> dict[str, Any]:
    described = {
        "session": session.session,
        "process": session.process,
        "bindings": session.bindings,
        "failure": session.failure or None,
        "unreachable": session.unreachable or None,
    }
    if (status := session.status) is None:
        return described
    addresses = dict(enumerate(session.addresses))
    return described | {
        "reads": status.places,
        "behind_bytes": status.behind_bytes,
        "members": [
            msgspec.structs.asdict(each) | {"address": addresses.get(each.member)}
            for each in status.members
        ],
        "lagging": [
            msgspec.structs.asdict(each) | {"lag_bytes": each.head - each.taken}
            for each in status.lagging
        ],
        "transactions": [msgspec.structs.asdict(each) for each in status.transactions],
        "reasons": _reasons(session),
    }


def _reasons(session: RunningSession) -> list[str]:
    """Return what holds documents back: `member 3: the Queue is over its soft limit of …`."""
    members = session.status.members if session.status else []
    return [f"member {each.member}: {each.waits}" for each in members if each.waits]


def _print_session(session: RunningSession) -> None:
    status = session.status
    fields: dict[str, object] = {
        "session": session.session,
        "process": session.process,
    }
    if session.unreachable:
        print_fields(fields | {"does not answer": session.unreachable})
        return
    fields["bindings"] = ", ".join(session.bindings)
    if status is None:
        print_fields(fields | {"failed": session.failure})
        return
    behind = f"{format_size(status.behind_bytes)} beyond the last checkpoint"
    print_fields(fields | {"reads": counted(status.places, "journal"), "behind": behind})
    for reason in _reasons(session):
        print_line(f"held back by {reason}")
    members = (
        (each.member, address, sum(each.reads.values()), format_size(each.queue_bytes))
        for each, address in zip(status.members, session.addresses, strict=True)
    )
    print_table(members, ("member", "address", "reads", "queue"), numbers=("reads", "queue"))
    if status.lagging:
        lags = (
            (each.journal, each.member, each.phase, format_size(each.head - each.taken))
            for each in status.lagging
        )
        print_table(lags, ("journal", "member", "phase", "lag"), numbers=("lag",))
    if status.transactions:
        waits = ((each.producer, each.journal, each.waits_for) for each in status.transactions)
        print_table(waits, ("producer", "journal", "waits for"))
