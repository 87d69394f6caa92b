"""What an oracle knows about paid calls, and a provider that charges for them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.pipeline.ledger.keys import CallKey, idempotency_key
from headrace.pipeline.ledger.state import Intent, Lease, LedgerChanges
from headrace.pipeline.ledger.totals import Nanos, StageTotals
from headrace.testing.pipeline.memory_results import MemoryResults

PRICE = Nanos(7)
PRICE_MAX = Nanos(2 * PRICE)


class LedgerKind(StrEnum):
    """What happens in a history."""

    CRASH = "the ledger's process died"
    TORN_GROUP = "it died before a group of requests was durable"
    UNANSWERED_GROUP = "it died when a group was durable, and before anybody was answered"
    LEASE_EXPIRED = "a caller's lease expired, and the caller went on as a zombie"
    CALLER_KILLED = "a caller died"
    CALL = "the provider was called"
    IN_DOUBT = "a claim ended in doubt"
    RESENT = "a call in doubt was made again with its key"
    RETRIED = "a call in doubt was made again and may be paid twice"
    HELD = "a call in doubt was held"
    FAILED = "a call failed for certain"
    RELEASED = "a claim was given back"
    RECORDED = "a result became durable"
    ZOMBIE_RESULT = "a caller without a lease brought the first result of a call"
    REPEATED = "a call had a result already when another came"
    REUSED = "a claim was answered with the recorded result"
    EQUAL_REUSED = "a claim was answered with the result of an equal call"
    EQUAL_AWAITED = "a claim waited for an equal call"
    AWAITED = "a claim waited for another caller, or for the budget that calls under way may use"
    PAUSED = "a claim was refused: the budget had too little left"
    BUDGET_RAISED = "the ledger was opened with a larger budget"
    UNKNOWN_COST = "a call was made of which only the answer told the cost"
    OVER_BUDGET = "the provider charged more than the budget: only answers told the cost"


@dataclass
class LedgerDisk:
    """What survives a crash of the ledger's process."""

    results: MemoryResults = field(default_factory=MemoryResults)
    intents: dict[CallKey, Intent] = field(default_factory=dict)
    totals: dict[str, StageTotals] = field(default_factory=dict)

    def write(self, changes: LedgerChanges) -> None:
        """Make changes durable, all at once."""
        for key, intent in changes.intents.items():
            if intent is None:
                self.intents.pop(key, None)
            else:
                self.intents[key] = intent
        self.totals |= copy.deepcopy(changes.totals)


@dataclass
class PaidProvider:
    """Answers calls, and charges once for each idempotency key if it honours them."""

    honours_keys: bool
    has_one_price: bool
    calls: Counter[CallKey] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    bill: int = 0

    def call(self, key: CallKey) -> bytes:
        self.calls[key] += 1
        name = idempotency_key(key)
        if not (self.honours_keys and self.charged[name]):
            self.charged[name] += 1
            self.bill += self.price(key)
        return f"{name} {self.calls[key]}".encode()

    def price(self, key: CallKey) -> Nanos:
        return PRICE if self.has_one_price else Nanos(1 + key[-1] % PRICE_MAX)


@dataclass
class LedgerBooks:
    """What the oracle knows: who holds which call, and how every claim ended."""

    count: Callable[[LedgerKind], None]
    holders: dict[CallKey, Lease] = field(default_factory=dict)
    doubts: Counter[CallKey] = field(default_factory=Counter)
    failures: Counter[CallKey] = field(default_factory=Counter)
    claims: int = 0
    in_flight_max: int = 0
    """The most calls that were under way or in doubt at once."""
    acknowledged: dict[CallKey, bytes] = field(default_factory=dict)
    """Results whose `record` was answered."""

    def end(self, lease: Lease) -> None:
        for key in [key for key, holder in self.holders.items() if holder == lease]:
            self.lose(key)

    def lose(self, key: CallKey) -> None:
        del self.holders[key]
        self.doubts[key] += 1
        self.count(LedgerKind.IN_DOUBT)
