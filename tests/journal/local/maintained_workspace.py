"""A workspace whose maintenance runs round by round, at a chosen time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

import headrace as hr
from headrace.ids import Offset
from headrace.journal.contract import Frame
from headrace.journal.local.maintenance import Maintenance
from tests.journal.conftest import SETTINGS

Seen = tuple[object, ...]
"""Everything about a frame but its hints."""


class MaintainedWorkspace:
    """Segments of 64 KiB, frames of about 4 KiB: see SETTINGS."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ahead_ns = 0
        """How far the clock of the maintenance is ahead."""
        self._open()

    def _open(self) -> None:
        self.workspace = hr.open(self.root, settings=SETTINGS)
        ownership = self.workspace._connection.ownership
        assert ownership
        self.owner = ownership.owner
        self.maintenance = Maintenance(
            self.owner, SETTINGS.journal, now_ns=lambda: time.time_ns() + self.ahead_ns
        )

    def reopen(self) -> None:
        self.workspace.close()
        self._open()

    def fill(self, collection: str, first: int, count: int) -> None:
        """Write documents of about a frame each, numbered from `first`, in one transaction."""
        with self.workspace.publisher() as tx:
            for n in range(first, first + count):
                tx.append(collection, [{"n": n, "text": f"{n}" + "x" * 4000}])

    def maintain(self) -> None:
        """Run a round that may rewrite everything up to now: two snapshots cover it."""
        for _ in range(2):
            self.workspace.append("kept/marks", [{"n": 0}])
            self.maintenance.save_snapshot()
        self.maintenance.run_round()

    def numbers(self, collection: str) -> list[int]:
        found: list[int] = self.workspace.table(collection).column("n").to_pylist()
        return found

    def raw(self, workspace: hr.Workspace | None = None) -> dict[str, list[Seen]]:
        """Return every frame of every journal, by the journal's name."""
        reader = workspace or self.workspace
        return {
            journal.name: [seen(frame) for frame in reader.frames(journal, committed=False)]
            for journal in reader.journals()
            if not journal.name.startswith("kept/marks/")
        }

    @property
    def disk_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.root / "log").iterdir())

    def __enter__(self) -> Self:
        self.workspace.collection("kept/marks", "n long")
        return self

    def __exit__(self, *exception: object) -> None:
        self.workspace.close()


def seen(frame: Frame) -> Seen:
    return *frame[:8], bytes(frame.body)


def from_offset(frames: list[Seen], begin: Offset) -> list[Seen]:
    return [frame for frame in frames if isinstance(frame[1], int) and frame[1] >= begin]
