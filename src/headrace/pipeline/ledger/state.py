"""Every decision of the ledger: who may call, what is in doubt, what is spent. Pure.

The state holds only calls without a result, and totals, so it is as large as what is under way.
Results are in the store, which the state asks and tells within one transaction: see `Results`.

    no intent ──claim──► held by an owner ──record──► result
        ▲                    │       ▲
        └──fail, release─────┤       │ claim: resend, retry
                             ▼       │
                          in doubt ──┘      (claim: held, under the terms "hold")
                             └──record, of an owner that was given up──► result

A call that was in doubt once is in doubt again after `fail` and `release`: these tell nothing about
the earlier attempt.

Methods note what the store has to write in `changes`. It is durable before anybody is answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

import msgspec

from headrace.pipeline.contract import CallTerms, InDoubtPolicy
from headrace.pipeline.ledger.keys import CallKey, ContentKey, content_key
from headrace.pipeline.ledger.totals import Nanos, StageTotals, to_money, to_nanos

Lease = NewType("Lease", str)
"""Names an owner of claims. The claims of a lease end together."""

NOBODY = Lease("")


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """A call that has no result yet."""

    stage: str
    unit: str
    call: int
    lease: Lease
    """NOBODY if the call is in doubt."""
    doubts: int
    reserved: Nanos | None
    """What the newest attempt may cost; None if nobody can tell."""

    @property
    def is_in_doubt(self) -> bool:
        return self.lease == NOBODY


class Results(Protocol):
    """The results that a store keeps. They are never changed or removed."""

    def find_result(self, key: CallKey) -> bytes | None: ...

    def find_equal(self, key: CallKey) -> CallKey | None:
        """Return a call of the same stage with equal content that has a result."""

    def put_result(self, key: CallKey, cost: Nanos, result: bytes) -> bool:
        """Keep a result, unless the call has one; return True if this is the first."""


class WantedCall(NamedTuple):
    """A call that somebody claims."""

    key: CallKey
    stage: str
    unit: str
    call: int


class Verdict(StrEnum):
    """What an owner may do about a call."""

    RESULT = "result"
    CALL = "call"
    CALL_AGAIN = "call again"
    """Make the call: an earlier attempt is in doubt."""
    WAIT = "wait"
    """Another owner makes the call or an equal one, or the budget is reserved: claim it again."""
    HELD = "held"
    PAUSED = "paused"
    """The budget has too little left, or the run is stopping."""


class Decision(NamedTuple):
    """The answer to a claim."""

    verdict: Verdict
    key: CallKey
    """The key to record the result under. It is another call's if that has equal content."""
    result: bytes | None = None
    why: str = ""
    """Which budget is spent, if the verdict is PAUSED."""


class StageTerms(msgspec.Struct, frozen=True):
    """`CallTerms`, with exact money."""

    in_doubt: InDoubtPolicy = "resend"
    reuse_equal: bool = False
    cost: Nanos | None = None
    budget: Nanos | None = None
    name: str = ""

    @classmethod
    def of(cls, stage: str, terms: CallTerms) -> StageTerms:
        """Raises UsageError if the cost or the budget is no amount of money."""
        cost, budget = terms.cost, terms.budget
        return cls(
            terms.in_doubt,
            terms.reuse_equal,
            None if cost is None else to_nanos(cost, f"the cost of a call of stage {stage!r}"),
            None if budget is None else to_nanos(budget, f"the budget of stage {stage!r}"),
            terms.name or stage,
        )


class LedgerChanges(msgspec.Struct):
    """What the store writes next. None removes an intent."""

    intents: dict[CallKey, Intent | None] = msgspec.field(default_factory=dict)
    totals: dict[str, StageTotals] = msgspec.field(default_factory=dict)


class Reservations(msgspec.Struct):
    """What the calls of a stage that have no result may cost."""

    under_way: int = 0
    unknown: int = 0
    """Calls under way of which nobody can tell the cost."""
    in_doubt: int = 0
    unknown_in_doubt: int = 0
    """Calls in doubt of which nobody could tell the cost when they were made."""

    def add(self, intent: Intent, sign: int) -> None:
        if intent.is_in_doubt:
            self.in_doubt += sign * (intent.reserved or 0)
            self.unknown_in_doubt += sign * (intent.reserved is None)
        else:
            self.under_way += sign * (intent.reserved or 0)
            self.unknown += sign * (intent.reserved is None)


class LedgerState:
    """The calls of one generation that have no result, and the totals of its stages."""

    def __init__(self) -> None:
        self.intents: dict[CallKey, Intent] = {}
        self.totals: dict[str, StageTotals] = {}
        self.budget: Nanos | None = None
        self.is_stopping = False
        """True if nobody may make another call: the run is about to end."""
        self.changes = LedgerChanges()
        self._terms: dict[str, StageTerms] = {}
        self._by_content: dict[ContentKey, CallKey] = {}
        self._by_lease: dict[Lease, set[CallKey]] = {}
        self._reserved: dict[str, Reservations] = {}

    @classmethod
    def recover(
        cls, intents: Iterable[tuple[CallKey, Intent]], totals: dict[str, StageTotals]
    ) -> LedgerState:
        """Return the state that a store holds. Whoever had a claim is lost."""
        state = cls()
        state.totals = totals
        for key, intent in intents:
            state._put(key, intent)
        state.take_changes()
        for lease in list(state._by_lease):
            state.end_lease(lease)
        return state

    def take_changes(self) -> LedgerChanges:
        changes, self.changes = self.changes, LedgerChanges()
        return changes

    def declare(self, stage: str, terms: StageTerms) -> None:
        self._terms[stage] = terms

    def terms(self, stage: str) -> StageTerms:
        return self._terms.get(stage) or StageTerms()

    # Claims

    def claim(self, wanted: WantedCall, lease: Lease, results: Results) -> Decision:
        """Decide whether an owner may make a call."""
        assert lease != NOBODY
        terms = self.terms(wanted.stage)
        key = wanted.key
        result = results.find_result(key)
        if result is None and terms.reuse_equal:
            if (equal := results.find_equal(key)) is not None:
                key, result = equal, results.find_result(equal)
            elif key not in self.intents:
                key = self._by_content.get(content_key(key), key)
        if result is not None:
            return Decision(Verdict.RESULT, key, result)
        intent = self.intents.get(key)
        if intent and not intent.is_in_doubt:
            if intent.lease != lease or key != wanted.key:
                return Decision(Verdict.WAIT, key)
            intent = self._lose(key, intent)
        if intent and terms.in_doubt == "hold":
            return Decision(Verdict.HELD, key)
        if self.is_stopping:
            return Decision(Verdict.PAUSED, key, None, "the run is stopping")
        estimate = self._estimate(wanted.stage)
        if refusal := self._check_budgets(wanted.stage, estimate, intent):
            return Decision(refusal[0], key, None, refusal[1])
        return self._hand_out(wanted, key, intent, lease, estimate)

    def _hand_out(
        self,
        wanted: WantedCall,
        key: CallKey,
        intent: Intent | None,
        lease: Lease,
        estimate: Nanos | None,
    ) -> Decision:
        totals = self._change_totals(wanted.stage)
        totals.calls += 1
        if intent:
            if self.terms(wanted.stage).in_doubt == "retry":
                totals.retries += 1
                totals.spent_in_doubt = Nanos(totals.spent_in_doubt + self._price(intent))
            else:
                totals.resends += 1
        given = intent or Intent(wanted.stage, wanted.unit, wanted.call, NOBODY, 0, None)
        self._put(key, msgspec.structs.replace(given, lease=lease, reserved=estimate))
        return Decision(Verdict.CALL_AGAIN if intent else Verdict.CALL, key)

    def record(
        self, stage: str, key: CallKey, cost: Nanos, result: bytes, results: Results
    ) -> None:
        """Learn what a call returned.

        It does not matter who made the call: a result that exists is never paid for again.
        """
        totals = self._change_totals(stage)
        totals.dearest = max(totals.dearest or Nanos(0), cost)
        if results.put_result(key, cost, result):
            totals.results += 1
            totals.spent = Nanos(totals.spent + cost)
            self._remove(key)
            return
        totals.repeats += 1
        if self.terms(stage).in_doubt != "resend":
            # One of the attempts that may have been paid was paid.
            totals.spent = Nanos(totals.spent + cost)
            totals.spent_in_doubt = Nanos(max(0, totals.spent_in_doubt - cost))

    def fail(self, key: CallKey, lease: Lease, *, in_doubt: bool) -> None:
        """Give up a claim whose call failed. Ignores an owner that has no claim any more."""
        intent = self.intents.get(key)
        if intent is None or intent.lease != lease:
            return
        if in_doubt:
            self._lose(key, intent)
            return
        self._change_totals(intent.stage).failures += 1
        self._end_claim(key, intent)

    def release(self, key: CallKey, lease: Lease) -> None:
        """Give back a claim whose call was not made."""
        intent = self.intents.get(key)
        if intent is None or intent.lease != lease:
            return
        self._change_totals(intent.stage).releases += 1
        self._end_claim(key, intent)

    def _end_claim(self, key: CallKey, intent: Intent) -> None:
        """Let go of a call that has no result. If an earlier attempt is in doubt, it still is."""
        if intent.doubts:
            # A retry has counted what the earlier attempts may have cost.
            is_counted = self.terms(intent.stage).in_doubt == "retry"
            reserved = Nanos(0) if is_counted else intent.reserved
            self._put(key, msgspec.structs.replace(intent, lease=NOBODY, reserved=reserved))
        else:
            self._remove(key)

    def end_lease(self, lease: Lease) -> None:
        """Learn that an owner is lost: its calls are in doubt."""
        for key in sorted(self._by_lease.get(lease, ())):
            self._lose(key, self.intents[key])

    def _lose(self, key: CallKey, intent: Intent) -> Intent:
        self._change_totals(intent.stage).doubts += 1
        lost = msgspec.structs.replace(intent, lease=NOBODY, doubts=intent.doubts + 1)
        self._put(key, lost)
        return lost

    # Money

    def _estimate(self, stage: str) -> Nanos | None:
        """Return what a call may cost: what is declared, or the most that one has cost so far."""
        declared = self.terms(stage).cost
        if declared is not None:
            return declared
        totals = self.totals.get(stage)
        return totals.dearest if totals else None

    def _price(self, intent: Intent) -> int:
        """Return what the newest attempt at a call may have cost, as far as anybody can tell."""
        if intent.reserved is not None:
            return intent.reserved
        return self._estimate(intent.stage) or 0

    def _check_budgets(
        self, stage: str, estimate: Nanos | None, intent: Intent | None
    ) -> tuple[Verdict, str] | None:
        """Return that a call may not be made now, and why; None if it may."""
        terms = self.terms(stage)
        place = f"is spent at stage {terms.name or stage!r}"
        waits = False
        for whose, budget, stages in (
            ("stage", terms.budget, {stage}),
            ("job", self.budget, {*self.totals, stage}),
        ):
            if budget is None:
                continue
            spent = self._spent(stages, intent)
            verdict = self._check_budget(budget, spent, stages, estimate)
            if verdict == Verdict.PAUSED:
                why = f"the {whose}'s budget of {to_money(budget):g} {place}: {to_money(spent):g}"
                why += " is paid or in doubt"
                if estimate is not None:
                    why += f", and the next call may cost {to_money(estimate):g}"
                return verdict, why
            waits |= verdict == Verdict.WAIT
        return (Verdict.WAIT, "") if waits else None

    def _spent(self, stages: set[str], intent: Intent | None) -> int:
        """Return what is paid or may be, apart from calls under way and the one of `intent`."""
        spent = 0
        for stage in stages:
            if totals := self.totals.get(stage):
                spent += totals.spent + totals.spent_in_doubt
            if reserved := self._reserved.get(stage):
                spent += reserved.in_doubt
                spent += reserved.unknown_in_doubt * (self._estimate(stage) or 0)
        if intent and self.terms(intent.stage).in_doubt == "resend":
            # The provider charges a call once, however often it gets the same key.
            spent -= self._price(intent)
        return spent

    def _check_budget(
        self, budget: Nanos, spent: int, stages: set[str], estimate: Nanos | None
    ) -> Verdict | None:
        under_way = unknown = 0
        for stage in stages:
            if reserved := self._reserved.get(stage):
                under_way += reserved.under_way
                unknown += reserved.unknown
        if estimate is None:
            if spent >= budget:
                return Verdict.PAUSED
            # The first answer tells what a call costs, so only one call is made before it.
            return Verdict.WAIT if unknown or spent + under_way >= budget else None
        if spent + estimate > budget:
            return Verdict.PAUSED
        return Verdict.WAIT if spent + under_way + estimate > budget else None

    # Bookkeeping

    def _put(self, key: CallKey, intent: Intent) -> None:
        self._take_out(key)
        self.intents[key] = self.changes.intents[key] = intent
        self._by_content[content_key(key)] = key
        self._reserved.setdefault(intent.stage, Reservations()).add(intent, 1)
        if not intent.is_in_doubt:
            self._by_lease.setdefault(intent.lease, set()).add(key)

    def _remove(self, key: CallKey) -> None:
        if self._take_out(key):
            self.changes.intents[key] = None
            if self._by_content.get(content_key(key)) == key:
                del self._by_content[content_key(key)]

    def _take_out(self, key: CallKey) -> bool:
        intent = self.intents.pop(key, None)
        if intent is None:
            return False
        self._reserved[intent.stage].add(intent, -1)
        if not intent.is_in_doubt:
            held = self._by_lease[intent.lease]
            held.remove(key)
            if not held:
                del self._by_lease[intent.lease]
        return True

    def _change_totals(self, stage: str) -> StageTotals:
        totals = self.totals.setdefault(stage, StageTotals())
        self.changes.totals[stage] = totals
        return totals

    def validate(self) -> None:
        """Check the invariants."""
        for lease, keys in self._by_lease.items():
            assert keys
            assert lease != NOBODY
            assert all(self.intents[key].lease == lease for key in keys)
        held = {key for key, intent in self.intents.items() if not intent.is_in_doubt}
        assert held == set().union(*self._by_lease.values())
        assert set(self._by_content.values()) <= set(self.intents)
        for stage, totals in self.totals.items():
            intents = [each for each in self.intents.values() if each.stage == stage]
            reserved = Reservations()
            for each in intents:
                reserved.add(each, 1)
            assert reserved == self._reserved.get(stage, Reservations())
            ended = totals.results + totals.repeats + totals.failures
            ended += totals.releases + totals.doubts
            # An owner whose claim is counted as a doubt may still bring a result.
            assert totals.calls <= ended + sum(not each.is_in_doubt for each in intents)
            assert totals.resends + totals.retries <= (
                totals.doubts + totals.releases + totals.failures
            )
            assert all(each.doubts >= 1 for each in intents if each.is_in_doubt)
