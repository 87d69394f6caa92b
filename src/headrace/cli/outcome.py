"""`headrace outcome`: what became of a commit that was in doubt."""

from __future__ import annotations

from typing import Annotated

import typer

import headrace as hr
from headrace.cli.opening import on_workspace
from headrace.cli.output import JsonOption, as_example, print_json, print_line


def register(app: typer.Typer) -> None:
    example = "headrace outcome 0a1b2c3d-5d2f9c0e7a11-18a3c5e07b1d2f00-0ce1f0a2b3c4d5e6"
    app.command(epilog=as_example(example))(on_workspace(outcome))


def outcome(
    ws: hr.Workspace,
    id: Annotated[str, typer.Argument(metavar="ID", help="As the error in doubt shows it.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to ask for.")] = 30.0,
    json: JsonOption = False,
) -> None:
    """Tell what became of a commit in doubt.

    Prints committed, rolled back or partial (some documents of an append outside of transactions
    are there). What was not committed never will be. Exits with 3 if it is still in doubt.
    """
    found = ws.outcome(id, timeout)
    if json:
        print_json({"id": id, "outcome": found})
    else:
        print_line(found.value)
