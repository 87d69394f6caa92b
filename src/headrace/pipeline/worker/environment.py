"""What a worker is given: its stage, which travels to it, and what it works with, made there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import Ledger, RateLimit, StageOperator
from headrace.pipeline.master.messages import Answer, Request
from headrace.pipeline.run.payloads import Payloads
from headrace.queues.contract import QueueBackend


class Control(Protocol):
    """The conversation of one worker with the master."""

    async def ask(self, request: Request) -> Answer:
        """Raises PeerLostError if the master is gone, or counts this worker as lost."""


@dataclass(frozen=True)
class WorkerStage:
    """A stage, as its workers see it."""

    stage: str
    operator: StageOperator
    is_durable: bool
    output_topic: str
    dead_topic: str
    """Where rows that the operator gave up are kept."""
    ledger_stage: str
    fetch_timeout_ms: int
    names_upstream: bool = False
    """True if the stage has several upstreams, so that units are named after theirs, too."""
    only_reads: frozenset[str] = frozenset()
    """Upstream stages on memory that no other stage reads: what is processed can be deleted."""


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker works with."""

    workspace: Workspace
    local: QueueBackend
    memory: QueueBackend
    payloads: Payloads
    control: Control
    ledger: Ledger | None = None
    rate_limit: RateLimit | None = None
    in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
    """Runs a function that blocks. A simulator has its own form of this and of what follows."""
    start: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]] = asyncio.create_task
    """Runs a coroutine beside the caller, which awaits it later."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
