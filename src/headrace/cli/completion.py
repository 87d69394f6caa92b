"""Names that a shell completes, found without opening a workspace.

Whoever opens a directory owns it if nobody does, and no key press should do that. So tasks are read
from its files, and collections are asked of the owner that runs; without one none are offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import typer

import headrace as hr
from headrace.cli.workspace_argument import DEFAULT_PLACE
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.location.workspace_ref import is_address
from headrace.shuffle import list_tasks
from headrace.storage import open_objects

_SILENCE_S = 2.0
"""An owner that does not answer must not keep the shell waiting."""


def complete_collection(context: typer.Context, incomplete: str) -> list[str]:
    return _beginning(_collections(_place(context), context.params.get("token") or ""), incomplete)


def complete_task(context: typer.Context, incomplete: str) -> list[str]:
    return _beginning(_tasks(_place(context)), incomplete)


def _place(context: typer.Context) -> str:
    given = context.params.get("workspace") or os.environ.get("HEADRACE_WORKSPACE")
    return str(given or DEFAULT_PLACE)


def _beginning(names: Iterator[str], incomplete: str) -> list[str]:
    # A shell that shows an error instead of names disturbs whoever types.
    with suppress(hr.HeadraceError, OSError):
        return [name for name in names if name.startswith(incomplete)]
    return []


def _collections(place: str, token: str) -> Iterator[str]:
    if not is_address(place):
        owner = WorkspaceDirectory(Path(place)).owner()
        if owner is None:
            return
        place, token = owner.address, owner.token
    service = hr.ServiceSettings(token=token, heartbeat_s=_SILENCE_S / 4, silence_s=_SILENCE_S)
    with hr.open(place, settings=hr.Settings(service=service)) as workspace:
        yield from (each.name for each in workspace.collections())


def _tasks(place: str) -> Iterator[str]:
    objects = Path(place, "objects")
    # To open what is not there would make it.
    if not is_address(place) and objects.is_dir():
        yield from (each.task for each in list_tasks(open_objects(str(objects))))
