"""Serves the ledger of the driver to workers in other processes.

A conversation is a lease: when it ends, or is silent for too long, the claims of its caller are in
doubt.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headrace.errors import HeadraceError, UsageError
from headrace.pipeline.ledger import messages
from headrace.pipeline.ledger.actor import CallOutcome, LedgerActor
from headrace.pipeline.ledger.state import Lease
from headrace.transport import Conversation, RequestService


class LedgerService(RequestService):
    """`transport.Service` over a `LedgerActor`."""

    requests = messages.requests

    def __init__(self, actor: LedgerActor) -> None:
        super().__init__()
        self._actor = actor
        self._prefixes: dict[Conversation, str] = {}
        self._leases: dict[Conversation, set[Lease]] = {}

    def carry_out(
        self, call: messages.LedgerCall, bodies: tuple[Any, ...], caller: Conversation
    ) -> Any:
        actor = self._actor
        match call:
            case messages.ClaimCalls(stage, unit, calls, owner):
                return actor.claim(stage, unit, calls, self._lease(caller, owner))
            case messages.Find(stage, unit, calls):
                return actor.find(stage, unit, calls)
            case messages.RecordResults(stage, outcomes):
                return actor.record(stage, [CallOutcome(*outcome) for outcome in outcomes])
            case messages.FailCalls(keys, owner, in_doubt):
                lease = self._lease(caller, owner)
                return actor.fail(keys, lease, in_doubt=in_doubt)
            case messages.ReleaseCalls(keys, owner):
                lease = self._lease(caller, owner)
                return actor.release(keys, lease)
            case messages.Declare(stage, terms):
                return actor.declare(stage, terms)
            case messages.SetBudget(budget):
                return actor.set_budget(budget)
            case messages.AskTotals():
                return actor.totals()
            case messages.AskInDoubt():
                return actor.calls_in_doubt()
        raise UsageError(
            f"the ledger was asked for {type(call).__name__}", do="use the same version"
        )

    def end(self, caller: Conversation) -> None:
        self._prefixes.pop(caller, None)
        if leases := self._leases.pop(caller, None):
            # A ledger that is closed puts the claims in doubt when it is opened again.
            with suppress(HeadraceError):
                self._actor.end_leases(leases)

    def _lease(self, caller: Conversation, owner: str) -> Lease:
        prefix = self._prefixes.get(caller)
        if prefix is None:
            prefix = self._prefixes[caller] = self._actor.new_lease_prefix()
        lease = Lease(prefix + owner)
        self._leases.setdefault(caller, set()).add(lease)
        return lease
