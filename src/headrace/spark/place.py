"""Which workspace, in a form that travels to any process."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from headrace.errors import UsageError, WorkspaceError
from headrace.journal.workspace import Workspace
from headrace.settings import ServiceSettings, Settings

_opened: dict[Place, Workspace] = {}
"""Of this process: Spark uses a worker for one task after the other."""


class Place(msgspec.Struct, frozen=True):
    """A directory, absolute because processes differ in where they run, or an owner's address."""

    path: str
    token: str = ""

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        return cls.at(str(workspace.directory or workspace.place), workspace.token)

    @classmethod
    def at(cls, path: str, token: str = "") -> Self:
        return cls(path if "://" in path else str(Path(path).absolute()), token)

    def open(self) -> Workspace:
        service = ServiceSettings(token=self.token)
        return Workspace(self.path, Settings(service=service), create=False)

    def shared(self) -> Workspace:
        """Opened once in this process, and never closed: it ends with the worker."""
        if self not in _opened:
            try:
                _opened[self] = self.open()
            except WorkspaceError as error:
                raise UsageError(
                    f"an executor cannot reach the workspace: {error.what}",
                    do="serve it with `headrace serve --host`, and give Spark that address",
                ) from error
        return _opened[self]
