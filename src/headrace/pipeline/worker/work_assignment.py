"""How a worker begins: in a thread of the driver, or in another process on any machine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass

import msgspec

from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import Ledger
from headrace.pipeline.ledger.local_ledger import LocalLedger
from headrace.pipeline.ledger.remote_ledger import RemoteLedger
from headrace.pipeline.master.master_service import LocalControl, RemoteControl
from headrace.pipeline.rate_limit.limiter import LocalRateLimit
from headrace.pipeline.rate_limit.rate_limit_service import RemoteRateLimit
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.run.run_services import RunServices
from headrace.pipeline.worker.environment import WorkerEnvironment, WorkerStage
from headrace.pipeline.worker.worker_loop import Worker
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend
from headrace.queues.remote_backend import RemoteBackend
from headrace.settings import ServiceSettings


class LocalAssignment:
    """A stage for workers in threads of the driver."""

    def __init__(
        self, stage: WorkerStage, workspace: Workspace, payloads: Payloads, services: RunServices
    ) -> None:
        self.stage = stage.stage
        self._stage = stage
        self._workspace = workspace
        self._payloads = payloads
        self._services = services

    def run(self, worker: str) -> None:
        """Run the worker's loop until the master lets it leave."""
        with closing(LocalControl(self._services.master)) as control:
            asyncio.run(self._run(worker, control))

    async def _run(self, worker: str, control: LocalControl) -> None:
        services = self._services
        async with AsyncExitStack() as stack:
            local = await stack.enter_async_context(LocalBackend(self._workspace))
            ledger: LocalLedger | None = None
            if services.ledger:
                ledger = LocalLedger(services.ledger)
                stack.push_async_callback(ledger.stop)
            environment = WorkerEnvironment(
                self._workspace,
                local,
                MemoryBackend(services.memory),
                self._payloads,
                control,
                ledger,
                LocalRateLimit(services.rate_limits),
            )
            await Worker(worker, self._stage, environment).run()


@dataclass(frozen=True)
class RemoteAssignment:
    """A stage for workers in other processes. It travels to them by cloudpickle."""

    worker_stage: WorkerStage
    workspace: WorkspaceRef
    payloads: Payloads
    address: str
    """Where the driver serves its workers."""
    service: ServiceSettings
    has_ledger: bool

    @property
    def stage(self) -> str:
        return self.worker_stage.stage

    def run(self, worker: str) -> None:
        """Run the worker's loop until the master lets it leave."""
        # A worker calls the driver; it listens nowhere.
        service = msgspec.structs.replace(self.service, host="127.0.0.1", port=0)
        with (
            self.workspace.open(Workspace, service) as workspace,
            closing(RemoteControl(self.address, service)) as control,
        ):
            asyncio.run(self._run(worker, workspace, control, service))

    async def _run(
        self, worker: str, workspace: Workspace, control: RemoteControl, service: ServiceSettings
    ) -> None:
        async with AsyncExitStack() as stack:
            local = await stack.enter_async_context(LocalBackend(workspace))
            memory = await stack.enter_async_context(RemoteBackend(self.address, service))
            rate_limit = RemoteRateLimit(self.address, service)
            await rate_limit.start()
            stack.push_async_callback(rate_limit.stop)
            ledger: Ledger | None = None
            if self.has_ledger:
                remote = ledger = RemoteLedger(self.address, service)
                await remote.start()
                stack.push_async_callback(remote.stop)
            environment = WorkerEnvironment(
                workspace, local, memory, self.payloads, control, ledger, rate_limit
            )
            await Worker(worker, self.worker_stage, environment).run()
