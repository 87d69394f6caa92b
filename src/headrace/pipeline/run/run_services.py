"""What a run offers its workers: the master, memory topics, the ledger and rate limits."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from headrace.errors import BudgetError, UsageError
from headrace.journal.location.workspace_ref import callable_by_others
from headrace.pipeline.ledger.actor import LedgerActor
from headrace.pipeline.ledger.ledger_service import LedgerService
from headrace.pipeline.ledger.messages import LEDGER
from headrace.pipeline.ledger.totals import CallFigures, to_nanos
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.master_service import ControlService
from headrace.pipeline.master.messages import CONTROL
from headrace.pipeline.rate_limit.limiter import RateLimiter
from headrace.pipeline.rate_limit.rate_limit_service import RATE_LIMITS, RateLimitService
from headrace.queues.memory_backend import MemoryTopics
from headrace.queues.messages import TOPICS
from headrace.queues.topics_service import TopicsService
from headrace.settings import ServiceSettings
from headrace.transport import Server, Service


class RunServices:
    """Everything of a run that lives in its driver, and serves other processes if they ask."""

    def __init__(
        self,
        master: Master,
        memory: MemoryTopics,
        ledger: tuple[Path, str] | None,
        budget: float | None = None,
    ) -> None:
        """`ledger` has its directory and the generation; None if no stage is expensive."""
        self.master = master
        self.memory = memory
        self._stack = ExitStack()
        self.rate_limits = RateLimiter()
        self._stack.callback(self.rate_limits.close)
        self.ledger: LedgerActor | None = None
        if ledger:
            path, generation = ledger
            self.ledger = LedgerActor.open(path, generation)
            self._stack.callback(self.ledger.close)
            self.ledger.set_budget(None if budget is None else to_nanos(budget, "a budget"))
        self._served: tuple[str, ServiceSettings] | None = None
        # The other workers of a run that fails pay for no more of their units.
        master.on_failure = self._stop_calls

    def spent(self) -> int:
        """Return what all results in the ledger cost, in billionths."""
        return sum(each.totals.spent for each in self.calls().values())

    def calls(self) -> dict[str, CallFigures]:
        """Return what became of the calls of each stage of the ledger."""
        return self.ledger.figures().result() if self.ledger else {}

    def stop(self) -> None:
        """Let the calls under way end, and nobody begin another."""
        self.master.stop()
        self._stop_calls()

    def _stop_calls(self) -> None:
        # Calls that wait for their turn are not made, so their workers give them back.
        self.rate_limits.refuse(BudgetError("the run is ending", do="run it again: it goes on"))
        # If the run is ending anyway, its ledger may be closed.
        with suppress(UsageError):
            if self.ledger:
                self.ledger.stop_calls().result()

    def serve(self, settings: ServiceSettings) -> tuple[str, ServiceSettings]:
        """Serve other processes from now on; return the address and what they need to call it."""
        if self._served is None:
            if not settings.token:
                settings = msgspec.structs.replace(settings, token=secrets.token_urlsafe(32))
            topics = TopicsService(self.memory)
            services: dict[str, Service] = {
                CONTROL: ControlService(self.master),
                TOPICS: topics,
                RATE_LIMITS: RateLimitService(self.rate_limits),
            }
            if self.ledger:
                services[LEDGER] = LedgerService(self.ledger)
            server = Server(services, settings)
            self._stack.callback(server.close)
            self._served = callable_by_others(server.address), settings
        return self._served

    def close(self) -> None:
        self._stack.close()
