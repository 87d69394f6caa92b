"""How the last run of a job stands, for whoever asks from another process.

The driver writes the object `pipelines/<job>/status.json` now and then, and at its end. A driver
that was killed leaves one that says "running"; then nobody holds the lock of the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec

from headrace.errors import ExistsError, NotFoundError, StorageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.master.stage_state import StageCounts
from headrace.pipeline.record import JobLock
from headrace.storage import Objects

_WRITE_S = 2.0

RunOutcome = Literal["running", "done", "paused", "stopped", "failed", "killed"]


class JobStatus(msgspec.Struct, frozen=True):
    """How a run stands or ended."""

    job: str
    outcome: RunOutcome
    began: float
    """When the run began, in seconds since 1970."""
    seen: float
    """When the driver wrote this status, in seconds since 1970."""
    stages: dict[str, StageCounts]
    """What the run has done."""
    error: str = ""
    paused: dict[str, str] = {}
    """Why each paused stage is paused."""


def _key(job: str) -> str:
    return f"pipelines/{job}/status.json"


def read_status(workspace: Workspace, job: str) -> JobStatus:
    """Return how the last run stands. Raises NotFoundError if there was none."""
    try:
        status = msgspec.json.decode(workspace.objects.get(_key(job)), type=JobStatus)
    except NotFoundError:
        raise NotFoundError(
            f"job {job!r} has never run in {workspace.location}", do="run it first"
        ) from None
    if status.outcome != "running" or _is_running(workspace, job):
        return status
    return msgspec.structs.replace(status, outcome="killed")


def _is_running(workspace: Workspace, job: str) -> bool:
    try:
        JobLock(workspace, job).close()
    except ExistsError:
        return True
    return False


class StatusWriter:
    """Writes the status of a run until it is closed."""

    def __init__(self, objects: Objects, status: Callable[[], JobStatus]) -> None:
        self._objects = objects
        self._status = status
        self._ending = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run, name="headrace-status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(_WRITE_S):
            # The run goes on without it, and the next write may succeed.
            with suppress(StorageError):
                self._write()

    def _write(self) -> None:
        status = msgspec.structs.replace(self._status(), seen=time.time())
        self._objects.put(_key(status.job), msgspec.json.encode(status))

    def close(self) -> None:
        """Write the end of the run."""
        self._ending.set()
        self._thread.join()
        self._write()
