"""Tokens and certificates as options."""

from __future__ import annotations

from typing import Any

import typer


def token_option(variable: str, help: str, more: str = "") -> Any:
    """Also from the environment, since everybody on a machine sees its command lines."""
    return typer.Option(
        envvar=variable,
        show_envvar=False,
        show_default=False,
        help=f"{help}; better in {variable}.{more}",
    )


def pem_option(help: str = "") -> Any:
    """Of a file that must be there."""
    return typer.Option(
        metavar="PEM", show_default=False, exists=True, dir_okay=False, readable=True, help=help
    )
