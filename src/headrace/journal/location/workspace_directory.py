"""The directory of a workspace: its format and its identity."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.decoders import decode_json
from headrace.errors import VersionError, WorkspaceError
from headrace.files import UNFINISHED, create_durably, make_directory, storage_errors
from headrace.transport.owned_directory import OwnedDirectory

FORMAT = 1


class _Identity(msgspec.Struct):
    """The contents of `workspace.json`."""

    format: int
    id: str = ""
    """A random id that tells this workspace from every other."""


class WorkspaceDirectory(OwnedDirectory):
    """The directory of a workspace, and its lock while this process holds it."""

    noun = "workspace"

    def prepare(self, *, create: bool) -> None:
        """Create the directory if it is missing; refuse a format that this version cannot read."""
        identity = self.root / "workspace.json"
        try:
            with storage_errors(f"{self.root}", do="choose a directory that can be written to"):
                if not identity.exists():
                    self._make(identity, create=create)
                found = decode_json(identity.read_bytes(), _Identity)
        except msgspec.DecodeError as error:
            raise WorkspaceError(
                f"{identity} cannot be read: {error}", do="restore it from a backup"
            ) from error
        if found.format > FORMAT:
            raise VersionError(
                f"{self.root} has format {found.format}, and this Headrace knows up to {FORMAT}",
                do="use the Headrace that wrote it, or a newer one",
            )
        self.id = found.id

    def _make(self, identity: Path, *, create: bool) -> None:
        if not create:
            raise WorkspaceError(f"{self.root} is not a workspace", do="create a collection there")
        make_directory(self.root)
        if self._holds_foreign_files() and not identity.exists():
            raise WorkspaceError(
                f"{self.root} holds files that are not a workspace's",
                do="choose an empty or a new directory",
            )
        with suppress(FileExistsError):
            create_durably(identity, msgspec.json.encode(_Identity(FORMAT, secrets.token_hex(16))))

    def _holds_foreign_files(self) -> bool:
        """Return True if other files are there than those that a dying process left unfinished."""
        return any(not each.name.endswith(UNFINISHED) for each in self.root.iterdir())
