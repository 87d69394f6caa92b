"""Asking before something is lost."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.errors import UsageError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> None:
    """Returns only if the answer is yes; no answer is a no."""
    if yes:
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was deleted", do="answer y, or pass --yes")
