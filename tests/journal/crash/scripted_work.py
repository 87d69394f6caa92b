"""Fixed work for a process that is killed at a chosen change of the disk, or line of the code.

It changes the disk in the same way every time, or nearly so: nothing is timed, and what is meant
to share a group does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar
from unittest import mock

import headrace as hr
from headrace.journal.local import owner
from headrace.journal.local.snapshot import SnapshotFiles
from headrace.journal.location.workspace_connection import Ownership
from headrace.log import Directory, Log
from headrace.testing.crash import DeadlyDisk, KillPoint, end_uncleanly
from tests.journal.crash.publisher_process import SCHEMA, documents, open_workspace

T = TypeVar("T")

LABEL = "named"
DOOMED = "crash/doomed"
NEVER_S = 3600.0
SETTINGS = hr.Settings(
    log=hr.LogSettings(segment_bytes=8 * 1024, idle_seal_s=NEVER_S),
    journal=hr.JournalSettings(
        transaction_buffer_bytes=2048, frame_bytes_target=1024, keeper_interval_s=NEVER_S
    ),
)

Work = Literal["publish", "maintain"]


class CountedDisk(DeadlyDisk):
    """Kills nobody, and records for every change whether it was a write, which can tear."""

    def __init__(self, disk: Directory, writes: list[bool]) -> None:
        super().__init__(disk, KillPoint(-1, "before"))
        self._writes = writes

    def change(self, do: Callable[[], T], do_part: Callable[[float], None] | None = None) -> T:
        self._writes.append(do_part is not None)
        return super().change(do, do_part)


@contextmanager
def written_together(log: Log) -> Iterator[None]:
    """Hold the writer, so that all appends of the block become one group."""
    held, released = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        held.set()
        released.wait()

    log.append([], hold)
    held.wait()
    try:
        yield
    finally:
        released.set()
    log.drain()


def ownership_of(workspace: hr.Workspace) -> Ownership:
    ownership = workspace._connection.ownership
    assert ownership
    return ownership


def do(work: Work, root: Path, verdicts: Path, death: KillPoint | None, line: int = -1) -> None:
    """Do the work in a process that dies at a change of the disk or at a line."""
    if death:
        mock.patch.object(
            owner, "Directory", lambda path: DeadlyDisk(Directory(path), death)
        ).start()
    if line >= 0:
        die_at_line(line)
    Script(root, verdicts).run(work)


class Rehearsal(NamedTuple):
    """What the work does if nobody dies."""

    writes: list[bool]
    """For each change of the disk, True if it is a write."""
    late: int
    """The first change of the last part, which is maintenance or publishing in one group."""
    lines: int
    """How many lines save the snapshots."""


def rehearse(work: Work, root: Path) -> Rehearsal:
    writes: list[bool] = []
    late = 0

    def come_to_last_part() -> None:
        nonlocal late
        late = len(writes)

    lines: list[str] = []
    disk = mock.patch.object(owner, "Directory", lambda path: CountedDisk(Directory(path), writes))
    before = sys.gettrace()
    with disk:
        script = Script(root, root.with_suffix(".verdicts"), come_to_last_part)
        sys.settrace(_tracer(lines.append))
        try:
            script.run(work)
        finally:
            sys.settrace(before)
    return Rehearsal(writes, late, len(lines))


def die_at_line(line: int) -> None:
    """Die before this line, counted over all lines that save a snapshot."""
    left = line

    def count(_: str) -> None:
        nonlocal left
        if left == 0:
            end_uncleanly()
        left -= 1

    sys.settrace(_tracer(count))


def _tracer(reached: Callable[[str], None]) -> Any:
    """Return a tracer that calls `reached` before each line that saves a snapshot."""
    saving = SnapshotFiles.save.__code__
    package = str(Path(hr.__file__).parent)
    within = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal within
        within = within or frame.f_code is saving
        ours = frame.f_code.co_filename.startswith(package)
        if event == "line" and within:
            reached(f"{frame.f_code.co_name}:{frame.f_lineno}")
        if event == "return" and frame.f_code is saving:
            within = False
        return trace if within and ours else None

    return trace


class Script:
    def __init__(
        self, root: Path, verdicts: Path, come_to_last_part: Callable[[], None] = lambda: None
    ) -> None:
        self._come_to_last_part = come_to_last_part
        self._verdicts = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._workspace = open_workspace(root, SETTINGS)
        self._ownership = ownership_of(self._workspace)
        self._log = self._ownership.owner.log
        self._publisher = self._workspace.publisher(LABEL)

    def run(self, work: Work) -> None:
        try:
            self._publish() if work == "publish" else self._maintain()
            self._workspace.close()
        finally:
            os.close(self._verdicts)

    def _publish(self) -> None:
        self._commit(1, 4)
        self._commit(2, 200)
        self._tell("no", 3)
        self._begin(3, 200).rollback()
        self._come_to_last_part()
        self._commit_together({4: 9, 5: 1, 6: 9})
        self._commit(7, 9)
        self._tell("no", 8)
        self._begin(8, 200)

    def _maintain(self) -> None:
        """Save three snapshots, of which the first goes, then rewrite mostly dead segments."""
        maintenance = self._ownership.maintenance
        self._workspace.collection(DOOMED, SCHEMA, key="part")
        for tx in (1, 2, 3):
            self._commit(tx, 9)
            whole = [{"label": DOOMED, "tx": tx, "part": n, "parts": 150} for n in range(150)]
            with written_together(self._log):
                transaction = self._publisher.begin()
                transaction.append(DOOMED, whole)
                pending = transaction.commit_nowait()
            pending.result()
        self._workspace.delete_collection(DOOMED)
        for tx in (4, 5, 6):
            maintenance.save_snapshot()
            self._commit(tx, 200)
        before = self._log.segments()
        self._come_to_last_part()
        maintenance.run_round()
        assert self._log.segments()[0].base > before[0].base, "nothing was dropped"
        self._commit(7, 9)

    def _begin(self, tx: int, parts: int) -> hr.Transaction:
        """Begin a transaction with a group for each collection."""
        transaction = self._publisher.begin()
        for collection, rows in documents(LABEL, tx, parts):
            with written_together(self._log):
                transaction.append(collection, rows)
        return transaction

    def _commit(self, tx: int, parts: int) -> None:
        transaction = self._begin(tx, parts)
        with written_together(self._log):
            pending = transaction.commit_nowait(str(tx).encode())
        pending.result()
        self._tell("yes", tx)

    def _commit_together(self, sizes: dict[int, int]) -> None:
        """Commit all of them in one group."""
        pending = {}
        with written_together(self._log):
            for tx, parts in sizes.items():
                transaction = self._publisher.begin()
                for collection, rows in documents(LABEL, tx, parts):
                    transaction.append(collection, rows)
                pending[tx] = transaction.commit_nowait(str(tx).encode())
        for tx, each in pending.items():
            each.result()
            self._tell("yes", tx)

    def _tell(self, verdict: str, tx: int) -> None:
        os.write(self._verdicts, f"{verdict} {LABEL} {tx}\n".encode())
