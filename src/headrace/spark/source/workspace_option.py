"""Which workspace: as the driver was told, and as its executors open it."""

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
"""Of this process: Spark uses a worker for one task after the other."""


class Place(msgspec.Struct, frozen=True):
    """A directory, absolute because processes differ in where they run, or an owner's address."""

    path: str
    token: str = ""

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """For processes of this machine."""
        if workspace.directory:
            return cls(str(workspace.directory))
        return cls(workspace.place, workspace.reach().token)

    @classmethod
    def at(cls, path: str, token: str = "") -> Self:
        return cls(path if "://" in path else str(Path(path).absolute()), token)

    def open(self) -> Workspace:
        service = ServiceSettings(token=self.token)
        return Workspace(self.path, Settings(service=service), create=False)


class Places:
    """Workspaces that are open while any write to them is.

    All writes share one: who opens it may become its owner, and to end that ends what others write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Place, tuple[Workspace, int]] = {}
        """With the number of writes."""

    @contextmanager
    def opened(self, place: Place) -> Iterator[Workspace]:
        with self._lock:
            workspace, count = self._open.get(place) or (place.open(), 0)
            self._open[place] = workspace, count + 1
        try:
            yield workspace
        finally:
            with self._lock:
                workspace, count = self._open.pop(place)
                if count > 1:
                    self._open[place] = workspace, count - 1
                else:
                    workspace.close()


def shared(reach: WorkspaceRef) -> Workspace:
    """Opened once in this process, and never closed: it ends with the worker."""
    key = reach.identity or reach.address
    before, opened = _opened.get(key, (reach, None))
    if opened is None or (opened.directory is None and before != reach):
        # Who knows only the address does not find the next owner.
        if opened:
            opened.close()
        opened = reach.open(Workspace, ServiceSettings())
        _opened[key] = reach, opened
    return opened
