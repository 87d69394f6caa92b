"""How a worker begins: in a thread of the driver."""

from __future__ import annotations

import asyncio

from headrace.journal.workspace import Workspace
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.service import LocalControl
from headrace.pipeline.payloads import Payloads
from headrace.pipeline.worker.environment import WorkerEnvironment, WorkerStage
from headrace.pipeline.worker.worker_loop import Worker
from headrace.queues.local import LocalBackend
from headrace.queues.memory import MemoryBackend, MemoryTopics


class LocalAssignment:
    """A stage for workers in threads of the driver."""

    def __init__(
        self,
        stage: WorkerStage,
        workspace: Workspace,
        memory: MemoryTopics,
        payloads: Payloads,
        master: Master,
    ) -> None:
        self.stage = stage.stage
        self._stage = stage
        self._workspace = workspace
        self._memory = memory
        self._payloads = payloads
        self._master = master

    def run(self, worker: str) -> None:
        """Run the worker's loop until the master lets it leave."""
        control = LocalControl(self._master)
        try:
            asyncio.run(self._run(worker, control))
        finally:
            control.close()

    async def _run(self, worker: str, control: LocalControl) -> None:
        async with LocalBackend(self._workspace) as local:
            environment = WorkerEnvironment(
                self._workspace, local, MemoryBackend(self._memory), self._payloads, control
            )
            await Worker(worker, self._stage, environment).run()
