"""Who runs a task, how its last run ended, and how another process asks it to stop.

    runs/<task>/<turn>.json   how the run of that turn stands
    runs/<task>/<turn>.lock   locked by the process that runs it, for as long as that lives
    runs/<task>/<turn>.stop   somebody asks it to stop

The highest turn counts: whoever runs a task last has taken it over. That a process lives is what
its lock says, which the kernel takes away however the process ends. So a record that says
`running` without a lock is of a run that was killed.
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
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from headrace.errors import DataError, HeadraceError, UsageError
from headrace.files import lock, make_directory, running_kernel, storage_errors, write_durably
from headrace.journal.workspace import Workspace
from headrace.shuffle.checkpoints.task_keys import runs_path

if TYPE_CHECKING:
    from headrace.spark.tasks.task_run import Progress

_LOOK_S = 0.25
_SEEN_EVERY_S = 10.0
_WRITABLE = "let this user write to the workspace's directory"

State = Literal["running", "stopped", "failed", "never run"]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a task stands, or how it ended."""

    task: str
    state: State
    since: float
    """When it came to that state, in seconds since 1970."""
    seen: float
    """When its process said so last."""
    host: str
    process: int
    checkpoint: int = 0
    """The last that it saw applied."""
    rows: int = 0
    restarts: int = 0
    error: str = ""
    """Why it failed: one line."""

    kernel: str = ""
    """Containers of one machine have it in common, and see each other's locks."""

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname() or (
            self.kernel != "" and self.kernel == running_kernel()
        )


class RunRecorder:
    """Keeps the record of one run, and hears when it is asked to stop."""

    def __init__(
        self, workspace: Workspace, task: str, turn: int, stop: Callable[[], None]
    ) -> None:
        folder = folder_of_runs(workspace, task)
        self._path = folder / f"{turn:020d}.json"
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
        # A run that was replaced has no record any more. And no run ends because its record cannot
        # be written: what else it writes to that disk will tell.
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
    """The record of the last run as it is true now; None if there was none.

    A run on another machine is believed: whether its process lives cannot be seen from here.
    """
    killed_at: Path | None = None
    while path := _newest(workspace, task):
        try:
            is_alive = _is_locked(path.with_suffix(".lock"))
            record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except FileNotFoundError:
            # Another run has replaced it, or it was forgotten.
            continue
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{path} is damaged: {error}", do="delete it; the next run of the task writes anew"
            ) from error
        if record.state != "running" or is_alive or not record.is_here:
            return record
        if path == killed_at:
            return _killed(record)
        # Whoever replaces a run takes its lock away before its record.
        killed_at = path
    return None


def _killed(record: RunRecord) -> RunRecord:
    killed = f"its process {record.process} ended without a word: it was killed, or the machine was"
    return msgspec.structs.replace(record, state="failed", since=record.seen, error=killed)


def check_not_running(workspace: Workspace, task: str) -> None:
    record = last_run(workspace, task)
    if record and record.state == "running":
        raise UsageError(
            f"task {task!r} runs, as process {record.process} on {record.host}",
            do=f"stop it first: headrace task stop {task}"
            + ("" if record.is_here else "; or run it here, which takes it over"),
        )


def stop_run(workspace: Workspace, task: str, timeout_s: float) -> RunRecord | None:
    """Ask a task that runs to stop, and wait until it has: how it ended then.

    None if it does not run. UsageError if it still runs when the time is over.
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
                f"task {task!r} still runs after {timeout_s:g} s, as process {record.process} on"
                f" {record.host}",
                do="wait longer with --timeout, or end that process",
            )
        time.sleep(_LOOK_S)
        record = last_run(workspace, task)
    if path:
        path.with_suffix(".stop").unlink(missing_ok=True)
    return record


def forget_runs(workspace: Workspace, task: str) -> None:
    """The task has never run, as far as anybody can tell."""
    shutil.rmtree(folder_of_runs(workspace, task), ignore_errors=True)


def folder_of_runs(workspace: Workspace, task: str) -> Path:
    return local_directory(workspace) / runs_path(task)


def local_directory(workspace: Workspace) -> Path:
    if workspace.directory is None:
        raise UsageError(
            f"{workspace.place} is known by its address, and tasks run where its directory is",
            do="open it by its directory",
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
    return max(folder_of_runs(workspace, task).glob("*.json"), default=None)


def _is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            # Shared: others who look do not count.
            os.close(lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
        except BlockingIOError:
            return True
    return False
