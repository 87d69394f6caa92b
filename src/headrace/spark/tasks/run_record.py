"""The record of a run: which process runs a task, and how the run ended. Also asks a run to stop.

    runs/<task>/<number>.json   how the run of that number stands
    runs/<task>/<number>.lock   the process that runs it locks this file for as long as it lives
    runs/<task>/<number>.stop   asks the run to stop

The number is that of the run's fence, and the highest counts. The kernel takes the lock away when
the process ends, however it ends. So if a record says `running` and nobody holds the lock, the
process was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from headrace.decoders import decode_json
from headrace.errors import DataError, HeadraceError, UsageError
from headrace.files import lock, make_directory, running_kernel, storage_errors, write_durably
from headrace.journal.workspace import Workspace
from headrace.shuffle.checkpoints.task_keys import runs_path
from headrace.spark.tasks.progress import Progress
from headrace.spark.tasks.run_state import RecordedState, is_killed

_LOOK_S = 0.25
_SEEN_EVERY_S = 10.0
_WRITABLE = "let this user write to the workspace's directory"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a task stands or ended."""

    task: str
    state: RecordedState
    since: float
    """When the run entered this state, in seconds since 1970."""
    seen: float
    """When its process wrote the record last."""
    host: str
    process: int
    checkpoint: int = 0
    """The last checkpoint that the run saw applied."""
    rows: int = 0
    restarts: int = 0
    error: str = ""
    """Why the run failed, in one line."""

    kernel: str = ""
    """The kernel's id. Containers of one machine share a kernel, and see each other's locks."""

    @property
    def is_here(self) -> bool:
        """True if the process ran on this machine."""
        return self.host == socket.gethostname() or (
            self.kernel != "" and self.kernel == running_kernel()
        )


class RunRecorder:
    """Writes the record of one run, and calls `stop` when another process asks the run to stop."""

    def __init__(
        self, workspace: Workspace, task: str, number: int, stop: Callable[[], None]
    ) -> None:
        folder = runs_folder(workspace, task)
        self._path = folder / f"{number:020d}.json"
        self._lock_path = self._path.with_suffix(".lock")
        self._stop_path = self._path.with_suffix(".stop")
        now = time.time()
        self._record = RunRecord(
            task=task,
            state="running",
            since=now,
            seen=now,
            host=socket.gethostname(),
            process=os.getpid(),
            kernel=running_kernel(),
        )
        with storage_errors(str(folder), do=_WRITABLE):
            make_directory(folder)
            self._lock_path.touch()
            self._lock = lock(self._lock_path, fcntl.LOCK_EX)
            self._write()
            for each in folder.iterdir():
                if each.stem < self._path.stem:
                    each.unlink(missing_ok=True)
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, args=(stop,), name="headrace-stop", daemon=True
        )
        self._thread.start()

    def report(self, progress: Progress) -> None:
        before = self._record
        self._record = msgspec.structs.replace(
            before,
            seen=time.time(),
            checkpoint=progress.checkpoint,
            rows=progress.rows,
            restarts=progress.restarts,
        )
        has_moved = progress.checkpoint != before.checkpoint
        if has_moved or self._record.seen - self._written_at > _SEEN_EVERY_S:
            self._write()

    def end(self, error: BaseException | None) -> None:
        now = time.time()
        self._record = msgspec.structs.replace(
            self._record,
            state="stopped" if error is None else "failed",
            since=now,
            seen=now,
            error="" if error is None else in_one_line(error),
        )
        self._write()

    def _write(self) -> None:
        self._written_at = self._record.seen
        # A run that was replaced has no record any more. And a run does not fail because its record
        # cannot be written: the other things that it writes to this disk will fail.
        with suppress(OSError):
            if self._lock_path.exists():
                write_durably(self._path, msgspec.json.encode(self._record))

    def _listen(self, stop: Callable[[], None]) -> None:
        while not self._ending.wait(_LOOK_S):
            if self._stop_path.exists():
                stop()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._stop_path.unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def last_run(workspace: Workspace, task: str) -> RunRecord | None:
    """Return the record of the last run, corrected if its process was killed; None without a run.

    The record of a run on another machine is returned as it is: from here nobody sees whether its
    process lives.
    """
    killed_at: Path | None = None
    while path := _newest(workspace, task):
        try:
            is_locked = _is_locked(path.with_suffix(".lock"))
            record = decode_json(path.read_bytes(), RunRecord)
        except FileNotFoundError:
            # Another run has replaced this one, or the task was reset.
            continue
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{path} is damaged: {error}", do="delete it: the next run writes another"
            ) from error
        if not is_killed(record.state, is_locked=is_locked, is_here=record.is_here):
            return record
        if path == killed_at:
            return _killed(record)
        # A run that replaces another deletes the lock before the record: look once more.
        killed_at = path
    return None


def _killed(record: RunRecord) -> RunRecord:
    killed = f"its process {record.process} was killed, or its machine stopped"
    return msgspec.structs.replace(record, state="failed", since=record.seen, error=killed)


def check_not_running(workspace: Workspace, task: str) -> None:
    """Raise UsageError if a process runs the task."""
    record = last_run(workspace, task)
    if record and record.state == "running":
        raise UsageError(
            f"task {task!r} runs as process {record.process} on {record.host}",
            do=f"stop it first: headrace task stop {task}"
            + ("" if record.is_here else "; or run it here, which takes it over"),
        )


def stop_run(workspace: Workspace, task: str, timeout_s: float) -> RunRecord | None:
    """Ask a task to stop, wait until it has stopped, and return how it ended; None if none runs.

    Raises UsageError if the task still runs after `timeout_s`.
    """
    record, deadline = last_run(workspace, task), time.monotonic() + timeout_s
    if record is None or record.state != "running":
        return None
    path = _newest(workspace, task)
    while record and record.state == "running" and path == _newest(workspace, task):
        if path:
            with storage_errors(str(path), do=_WRITABLE):
                path.with_suffix(".stop").touch()
        if time.monotonic() > deadline:
            raise UsageError(
                f"task {task!r} still runs after {timeout_s:g} s as process {record.process} on"
                f" {record.host}",
                do="wait longer with --timeout, or end that process",
            )
        time.sleep(_LOOK_S)
        record = last_run(workspace, task)
    if path:
        path.with_suffix(".stop").unlink(missing_ok=True)
    return record


def forget_runs(workspace: Workspace, task: str) -> None:
    """Delete the records of all runs, so that the task has never run."""
    shutil.rmtree(runs_folder(workspace, task), ignore_errors=True)


def runs_folder(workspace: Workspace, task: str) -> Path:
    return local_directory(workspace) / runs_path(task)


def local_directory(workspace: Workspace) -> Path:
    """Return the workspace's directory; raise UsageError if it is known by its address only."""
    if workspace.directory is None:
        raise UsageError(
            f"{workspace.location} is an address, and tasks need the workspace's directory",
            do="run the task on the machine of the workspace, and open it by its directory",
        )
    return workspace.directory.absolute()


def in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, HeadraceError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _newest(workspace: Workspace, task: str) -> Path | None:
    if workspace.directory is None:
        return None
    return max(runs_folder(workspace, task).glob("*.json"), default=None)


def _is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            # A shared lock: other processes that look at the same time do not count.
            os.close(lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
        except BlockingIOError:
            return True
    return False
