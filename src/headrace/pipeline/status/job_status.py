"""How the last run of a job stands, for whoever asks from another process.

The driver writes the object `pipelines/<job>/status.json` now and then, and at its end. A driver
that was killed leaves one that says "running"; then nobody holds the lock of the job.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import msgspec

from headrace.decoders import decode_json
from headrace.errors import ExistsError, HeadraceError, NotFoundError, bug
from headrace.journal.workspace import Workspace
from headrace.pipeline.calls.call_results import one_line
from headrace.pipeline.master.stage_state import StageCounts
from headrace.pipeline.run.record import JobLock
from headrace.queues.contract import QueueBackend
from headrace.queues.local_backend import LocalBackend

_log = logging.getLogger("headrace")

LOOK_S = 0.5
"""A run looks at its own figures so often."""
_WRITE_S = 2.0

RunOutcome = Literal["running", "done", "paused", "stopped", "failed", "killed"]


class StageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a stage. Those without a remark are of this run."""

    upstreams: tuple[str, ...] = ()
    expensive: bool = False
    units: int = 0
    """Units that the stage has processed, in all runs."""
    units_before: int = 0
    """Units that it had processed when the run began."""
    units_total: int | None = None
    """Units that it has got and may still get, in all runs; None if nobody can tell yet. It is an
    upper bound until the stages above are over."""
    rows_left: int | None = None
    """Rows that it has got and not processed; None if they must be read to know."""
    dead_letters: int = 0
    """Rows that it gave up, in all runs, and that were not replayed."""
    working: int = 0
    """Workers that have work now."""
    calls: int = 0
    """Calls of an expensive stage that ended, or whose end is in doubt."""
    calls_under_way: int = 0
    calls_found: int = 0
    """Calls that were not made, because the ledger had their results."""
    calls_failed: int = 0
    """Calls that failed for certain."""
    results_before: int = 0
    """Results that the ledger had when the run began."""
    in_doubt: int = 0
    """Calls that may have been made, and that nobody makes now, in all runs."""
    cost: float = 0.0
    cost_in_all: float = 0.0
    """What the results of this stage cost, in all runs."""
    tasks: int = 0
    """Tasks of a stage that shuffles whose output is there."""
    tasks_reused: int = 0
    """Those of them that this run did not compute, because an earlier one had."""


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
    progress: dict[str, StageProgress] = {}
    """How far each stage is; empty until the run has counted it."""
    cost: float = 0.0
    """What the results that the run recorded cost."""
    cost_in_all: float = 0.0
    """What all results cost since the job began from scratch, in this run and earlier ones."""


def _key(job: str) -> str:
    return f"pipelines/{job}/status.json"


def read_status(workspace: Workspace, job: str) -> JobStatus:
    """Return how the last run stands. Raises NotFoundError if there was none."""
    try:
        status = decode_json(workspace.objects.get(_key(job)), JobStatus)
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


Look = Callable[[QueueBackend | None], Awaitable[JobStatus]]
"""Returns how a run stands. It reads topics from the backend, if it gets one."""


class StatusWriter:
    """Writes the status of a run, and shows it to whoever watches, until it is closed."""

    def __init__(
        self,
        workspace: Workspace,
        look: Look,
        watch: Callable[[JobStatus], None] | None = None,
    ) -> None:
        self._workspace = workspace
        self._look = look
        self._watch = watch
        self._began = threading.Event()
        self._ending = threading.Event()
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-status", daemon=True)
        self._thread.start()
        self._began.wait()
        self._raise()

    def _run(self) -> None:
        try:
            asyncio.run(self._keep_writing())
        except Exception as error:  # noqa: BLE001  `close` raises it
            if not isinstance(error, HeadraceError):
                error = bug("the status of the run", error)
            self._error = error
        finally:
            self._began.set()

    async def _keep_writing(self) -> None:
        # Nobody waits for the counts, so a run begins as fast with many units as with few.
        await self._write(None)
        self._began.set()
        async with LocalBackend(self._workspace) as backend:
            due = time.monotonic() + _WRITE_S
            wait_s = LOOK_S if self._watch else _WRITE_S
            while not await asyncio.to_thread(self._ending.wait, wait_s):
                # The run does not depend on it, and the next one may be written.
                with suppress(HeadraceError):
                    is_due = time.monotonic() >= due
                    await (self._write if is_due else self._show)(backend)
                    due = time.monotonic() + _WRITE_S if is_due else due
            await self._write(backend)

    async def _show(self, backend: QueueBackend | None) -> JobStatus:
        status = msgspec.structs.replace(await self._look(backend), seen=time.time())
        if self._watch and backend:
            try:
                self._watch(status)
            except Exception as error:  # noqa: BLE001  the run goes on unseen, as without a terminal
                self._watch = None
                _log.warning("job %s is not shown any more: %s", status.job, one_line(error))
        return status

    async def _write(self, backend: QueueBackend | None) -> None:
        status = await self._show(backend)
        encoded = msgspec.json.encode(status)
        await asyncio.to_thread(self._workspace.objects.put, _key(status.job), encoded)

    def _raise(self) -> None:
        if self._error:
            self._thread.join()
            raise self._error

    def close(self) -> None:
        """Write the end of the run."""
        self._ending.set()
        self._thread.join()
        self._raise()
