"""A ledger over the real state, for workers that run step by step, and who pays for what."""

from __future__ import annotations

import copy
from collections import Counter

import msgspec

from headrace.errors import BudgetError, PeerLostError, UnitError
from headrace.pipeline.ledger.keys import CallKey, call_keys, content_hash, unit_prefix
from headrace.pipeline.ledger.state import (
    Decision,
    Lease,
    LedgerState,
    StageTerms,
    Verdict,
    WantedCall,
)
from headrace.pipeline.ledger.totals import Nanos
from headrace.testing.pipeline.job_kinds import JobKind
from headrace.testing.pipeline.ledger_books import PRICE_MAX, LedgerBooks, LedgerDisk, PaidProvider
from headrace.testing.pipeline.simulated_parts import Faults, StepPoint

HELD = "the call is held"
_GENERATION = "g"


class SimulatedLedger:
    """The ledger of a job. Its disk survives the driver; every request is one transaction."""

    def __init__(
        self, faults: Faults, stage: str, terms: StageTerms, provider: PaidProvider
    ) -> None:
        self.stage = stage
        self.terms = terms
        self.provider = provider
        self.budget: Nanos | None = None
        self.faults = faults
        self.disk = LedgerDisk()
        self.books = LedgerBooks(lambda _: faults.count(JobKind.CALL_IN_DOUBT))
        self.handed_out: Counter[CallKey] = Counter()
        self.open()

    def open(self) -> None:
        """Begin a run: whoever had a claim is lost."""
        disk = copy.deepcopy(self.disk)
        self.state = LedgerState.recover(disk.intents.items(), disk.totals)
        self.state.declare(self.stage, self.terms)
        self.state.budget = self.budget
        for lease in set(self.books.holders.values()):
            self.books.end(lease)
        self._write()
        self.begun = set(self.handed_out)

    def hold_no_more(self) -> None:
        self.terms = msgspec.structs.replace(self.terms, in_doubt="retry")

    def raise_budget(self, more: int) -> None:
        assert self.budget is not None
        self.budget = Nanos(self.budget + more)

    def wanted(self, unit: str, row: int, content: str) -> WantedCall:
        prefix = unit_prefix(_GENERATION, self.stage, unit)
        (key,) = call_keys(prefix, [(row, content_hash("1", content.encode()))])
        return WantedCall(key, self.stage, unit, row)

    def _write(self) -> None:
        self.state.validate()
        self.disk.write(self.state.take_changes())

    def claim(self, wanted: WantedCall, lease: Lease) -> Decision:
        books = self.books
        decision = self.state.claim(wanted, lease, self.disk.results)
        self._write()
        if books.holders.get(wanted.key) == lease:
            books.lose(wanted.key)
        if decision.verdict in (Verdict.CALL, Verdict.CALL_AGAIN):
            key = decision.key
            assert key not in books.holders, "two workers may make a call"
            books.holders[key] = lease
            books.in_flight_max = max(books.in_flight_max, len(self.state.intents))
            self.handed_out[key] += 1
            assert self.handed_out[key] <= 1 + books.doubts[key], "a call is repeated for nothing"
        return decision

    def call(self, key: CallKey) -> bytes:
        self.faults.count(JobKind.CALL)
        result = self.provider.call(key)
        assert self.provider.calls[key] <= self.handed_out[key]
        return result

    def record(self, key: CallKey, result: bytes, lease: Lease) -> None:
        cost = self.provider.price(key)
        self.state.record(self.stage, key, cost, result, self.disk.results)
        self._write()
        holder = self.books.holders.pop(key, None)
        if self.disk.results.results[key] != result:
            self.faults.count(JobKind.CALL_REPEATED)
        elif holder != lease:
            self.faults.count(JobKind.ZOMBIE_RESULT)

    def doubt(self, key: CallKey, lease: Lease) -> None:
        self.state.fail(key, lease, in_doubt=True)
        self._write()
        if self.books.holders.get(key) == lease:
            self.books.lose(key)

    def end_lease(self, lease: Lease) -> None:
        self.state.end_lease(lease)
        self._write()
        self.books.end(lease)

    # -- what must hold ----------------------------------------------------------------------

    def check_same_budget(self) -> None:
        """A run that began with a spent budget makes no call but those that it counts as paid."""
        if self.provider.has_one_price:
            assert set(self.provider.calls) <= self.begun

    def check(self) -> None:
        if self.provider.honours_keys:
            assert max(self.provider.charged.values(), default=0) <= 1
        if self.budget is None:
            return
        over = self.provider.bill - self.budget
        if over <= 0:
            return
        assert not self.provider.has_one_price, f"{over} over the budget of {self.budget}"
        self.faults.count(JobKind.OVER_BUDGET)
        doubts = 0 if self.provider.honours_keys else self.books.doubts.total()
        assert over <= PRICE_MAX * (self.books.in_flight_max + doubts)


class LedgerConnection:
    """The ledger as one worker sees it, until its lease ends or its driver is gone."""

    def __init__(self, ledger: SimulatedLedger, worker: str) -> None:
        self._ledger = ledger
        self._state = ledger.state
        self._lease = Lease(worker)
        self._has_lease = True

    def end(self) -> None:
        if self._has_lease and self._state is self._ledger.state:
            self._ledger.end_lease(self._lease)
        self._has_lease = False

    async def pay(self, unit: str, row: int, content: str, kills: bool) -> bool:
        """Make a paid call, once. Return False if the process is to die of it."""
        key = await self._claim(self._ledger.wanted(unit, row, content))
        if key is None:
            return True
        if kills:
            return False
        await StepPoint()
        result = self._ledger.call(key)
        await StepPoint()
        self._check_reachable()
        if self._ledger.faults.happens(0.02):
            self._ledger.faults.count(JobKind.CALL_TIMED_OUT)
            self._ledger.doubt(key, self._lease)
            return await self.pay(unit, row, content, kills)
        self._ledger.record(key, result, self._lease)
        await StepPoint()
        return True

    async def _claim(self, wanted: WantedCall) -> CallKey | None:
        """Wait until the call may be made, and return its key; None if there is a result."""
        faults = self._ledger.faults
        while True:
            await StepPoint()
            self._check_reachable()
            if not self._has_lease:
                raise PeerLostError("the ledger has given this worker up")
            verdict, key, _, why = self._ledger.claim(wanted, self._lease)
            await StepPoint()
            match verdict:
                case Verdict.RESULT:
                    faults.count(JobKind.CALL_REUSED)
                    return None
                case Verdict.HELD:
                    faults.count(JobKind.CALL_HELD)
                    raise UnitError(HELD)
                case Verdict.PAUSED:
                    raise BudgetError(why)
                case Verdict.WAIT:
                    faults.count(JobKind.CALL_AWAITED)
                case _:
                    if verdict == Verdict.CALL_AGAIN:
                        faults.count(JobKind.CALL_AGAIN)
                    return key

    def _check_reachable(self) -> None:
        if self._state is not self._ledger.state:
            raise PeerLostError("the driver is gone")
