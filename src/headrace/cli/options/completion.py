"""Names that a shell completes, found without opening a workspace directory.

The first process to open a directory owns it, and no key press should do that. So this module reads
the tasks and jobs from the directory's files and asks the running owner for the collections.
Without an owner it offers no collections.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import typer

import headrace as hr
from headrace.cli.options.workspace_options import DEFAULT_WORKSPACE
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.location.workspace_ref import is_address
from headrace.shuffle import list_tasks
from headrace.storage import open_objects

_SILENCE_S = 2.0
"""A shell waits no longer than this for an owner that does not answer."""


def complete_collection(context: typer.Context, incomplete: str) -> list[str]:
    token = context.params.get("token") or ""
    return _starting_with(incomplete, _collections(_workspace(context), token))


def complete_task(context: typer.Context, incomplete: str) -> list[str]:
    return _starting_with(incomplete, _tasks(_workspace(context)))


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    return _starting_with(incomplete, _jobs(_workspace(context)))


def complete_query(context: typer.Context, incomplete: str) -> list[str]:
    return _starting_with(incomplete, _queries(_workspace(context)))


def _workspace(context: typer.Context) -> str:
    given = context.params.get("workspace") or os.environ.get("HEADRACE_WORKSPACE")
    return str(given or DEFAULT_WORKSPACE)


def _starting_with(incomplete: str, names: Iterator[str]) -> list[str]:
    # An error in the middle of a command line would disturb the person who types it.
    with suppress(hr.HeadraceError, OSError):
        return [name for name in names if name.startswith(incomplete)]
    return []


def _collections(location: str, token: str) -> Iterator[str]:
    if not is_address(location):
        owner = WorkspaceDirectory(Path(location)).owner()
        if owner is None:
            return
        location, token = owner.address, owner.token
    service = hr.ServiceSettings(token=token, heartbeat_s=_SILENCE_S / 4, silence_s=_SILENCE_S)
    with hr.open(location, settings=hr.Settings(service=service)) as workspace:
        yield from (each.name for each in workspace.collections())


def _tasks(location: str) -> Iterator[str]:
    objects = Path(location, "objects")
    # Opening a store that does not exist would create it.
    if not is_address(location) and objects.is_dir():
        yield from (each.task for each in list_tasks(open_objects(str(objects))))


def _queries(location: str) -> Iterator[str]:
    from headrace.exchange.inventory import query_names

    objects = Path(location, "objects")
    if not is_address(location) and objects.is_dir():
        yield from sorted(query_names(open_objects(str(objects))).values())


def _jobs(location: str) -> Iterator[str]:
    if not is_address(location):
        # Every job that somebody ran has a lock there.
        yield from sorted(path.stem for path in Path(location, "pipelines").glob("*.lock"))
