"""The workspace of a query: as the options name it, and as executors open it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.workspace import Workspace
from headrace.settings import ServiceSettings, Settings

_opened: dict[str, tuple[WorkspaceRef, Workspace]] = {}
"""The workspaces that this process has open. Spark runs many tasks in one worker."""


class WorkspaceLocation(msgspec.Struct, frozen=True):
    """A workspace's absolute directory, or the address of its owner. Any process can open it."""

    path: str
    token: str = ""

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the location of a workspace for other processes of this machine."""
        if workspace.directory:
            return cls(str(workspace.directory))
        return cls(workspace.location, workspace.reach().token)

    @classmethod
    def parse(cls, path: str, token: str = "") -> Self:
        return cls(path if "://" in path else str(Path(path).absolute()), token)

    def open(self) -> Workspace:
        service = ServiceSettings(token=self.token)
        return Workspace(self.path, Settings(service=service), create=False)


class SharedWorkspaces:
    """Keeps a workspace open while there is a write to it.

    All writes share one open workspace: the process may own it, and closing it would end the
    writes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[WorkspaceLocation, tuple[Workspace, int]] = {}
        """Each workspace with the number of its writes."""

    @contextmanager
    def opened(self, location: WorkspaceLocation) -> Iterator[Workspace]:
        with self._lock:
            workspace, count = self._open.get(location) or (location.open(), 0)
            self._open[location] = workspace, count + 1
        try:
            yield workspace
        finally:
            with self._lock:
                workspace, count = self._open.pop(location)
                if count > 1:
                    self._open[location] = workspace, count - 1
                else:
                    workspace.close()


def shared(reach: WorkspaceRef) -> Workspace:
    """Return the workspace, which this process opens once and never closes."""
    key = reach.identity or reach.address
    before, opened = _opened.get(key, (reach, None))
    if opened is None or (opened.directory is None and before != reach):
        # A workspace that was opened by its address does not find the next owner by itself.
        if opened:
            opened.close()
        opened = reach.open(Workspace, ServiceSettings())
        _opened[key] = reach, opened
    return opened
