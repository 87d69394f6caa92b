"""A world of callers, a provider that charges, and a ledger whose process dies at any point.

One seed decides everything. The ledger's disk is the dicts that survive a crash; requests are
carried out in groups, each of which is written whole or not at all. The oracle keeps its own,
simple books of what was durable and what was answered, and compares them with the ledger's.

    python -m headrace.testing.pipeline.ledger_simulator --seeds 20000 --processes 16
"""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from headrace.pipeline.contract import InDoubtPolicy
from headrace.pipeline.ledger.keys import (
    CallKey,
    call_keys,
    content_hash,
    content_key,
    unit_prefix,
)
from headrace.pipeline.ledger.state import (
    Decision,
    Lease,
    LedgerState,
    StageTerms,
    Verdict,
    WantedCall,
)
from headrace.pipeline.ledger.totals import Nanos, StageTotals
from headrace.testing.pipeline.ledger_books import (
    PRICE,
    PRICE_MAX,
    LedgerBooks,
    LedgerDisk,
    LedgerKind,
    PaidProvider,
)
from headrace.testing.pipeline.memory_results import MemoryResults
from headrace.testing.seeds import Say, Simulation, main

STEPS = 120
STAGE = "paid"
_MAY_CALL = {Verdict.CALL, Verdict.CALL_AGAIN}


@dataclass
class LedgerRequest:
    """Something asked of the ledger. `note` tells the oracle what became durable."""

    step: Callable[[LedgerState, MemoryResults], Any]
    note: Callable[[Any], None]
    answer: Callable[[Any], None]


class Caller:
    """Claims and makes calls. After its lease has ended it may go on for a while, as a zombie."""

    def __init__(self, world: LedgerWorld, name: str, wanted: list[WantedCall]) -> None:
        self.world = world
        self.lease = Lease(name)
        self.todo = list(wanted)
        self.claimed: list[CallKey] = []
        self.returned: list[tuple[CallKey, bytes]] = []
        self.is_lost = False
        self.is_asking = False

    def step(self) -> None:
        """Do one thing."""
        chance = self.world.chance
        if self.returned and chance.random() < 0.6:
            self._record(*self.returned.pop())
        elif self.claimed:
            self._end_call(self.claimed.pop(chance.randrange(len(self.claimed))))
        elif self.todo and not self.is_lost and not self.is_asking:
            self._claim(self.todo[: chance.randint(1, 3)])

    def _claim(self, wanted: list[WantedCall]) -> None:
        world, lease = self.world, self.lease
        recorded = dict(world.books.acknowledged)

        def note(decisions: list[Decision]) -> None:
            books = world.books
            for call, decision in zip(wanted, decisions, strict=True):
                if books.holders.get(call.key) == lease and decision.key == call.key:
                    books.lose(call.key)
                if decision.verdict in _MAY_CALL:
                    assert decision.key not in books.holders
                    books.holders[decision.key] = lease
                    books.claims += 1
                    books.in_flight_max = max(books.in_flight_max, len(world.state.intents))
                world.count_decision(call, decision)

        def answer(decisions: list[Decision]) -> None:
            self.is_asking = False
            for call, decision in zip(wanted, decisions, strict=True):
                world.check_claim(call, decision, recorded)
                self.todo.remove(call)
                if decision.verdict != Verdict.RESULT:
                    self.todo.append(call)
                if decision.verdict in _MAY_CALL:
                    self.claimed.append(decision.key)

        self.is_asking = True
        world.ask(
            LedgerRequest(
                lambda state, results: [state.claim(each, lease, results) for each in wanted],
                note,
                answer,
            )
        )

    def _end_call(self, key: CallKey) -> None:
        """Make the call, or not, and learn how it ended, or not."""
        world = self.world
        match world.chance.choices(["returns", "fails", "times out", "is not made"], [10, 1, 1, 1]):
            case ["returns"]:
                self.returned.append((key, world.call(key)))
            case ["fails"]:
                self._give_up(key, lambda state: state.fail(key, self.lease, in_doubt=False), "f")
            case ["times out"]:
                world.call(key)
                self._give_up(key, lambda state: state.fail(key, self.lease, in_doubt=True), "d")
            case ["is not made"]:
                self._give_up(key, lambda state: state.release(key, self.lease), "r")

    def _give_up(self, key: CallKey, step: Callable[[LedgerState], None], how: str) -> None:
        books, lease = self.world.books, self.lease

        def note(_: Any) -> None:
            if books.holders.get(key) != lease:
                return
            if how == "d":
                books.lose(key)
                return
            del books.holders[key]
            if how == "f":
                books.failures[key] += 1
            self.world.count(LedgerKind.FAILED if how == "f" else LedgerKind.RELEASED)

        self.world.ask(LedgerRequest(lambda state, _: step(state), note, lambda _: None))

    def _record(self, key: CallKey, result: bytes) -> None:
        world, books = self.world, self.world.books
        cost = world.provider.price(key)

        def note(_: Any) -> None:
            holder = books.holders.pop(key, None)
            if world.disk.results.results[key] != result:
                world.count(LedgerKind.REPEATED)
                return
            world.count(LedgerKind.RECORDED)
            if holder != self.lease:
                world.count(LedgerKind.ZOMBIE_RESULT)

        def answer(_: Any) -> None:
            books.acknowledged.setdefault(key, world.disk.results.results[key])

        world.ask(
            LedgerRequest(
                lambda state, results: state.record(STAGE, key, cost, result, results),
                note,
                answer,
            )
        )


class LedgerWorld:
    """One history."""

    def __init__(self, seed: int, say: Say | None = None) -> None:
        self.chance = chance = random.Random(seed)
        self.counts: Counter[StrEnum] = Counter()
        self._say = say
        policy: InDoubtPolicy = chance.choice(["resend", "hold", "retry"])
        has_one_price = chance.random() < 0.7
        self.terms = StageTerms(policy, chance.random() < 0.4, PRICE if has_one_price else None)
        self.budget = Nanos(chance.randrange(0, 60)) if chance.random() < 0.4 else None
        self.provider = PaidProvider(policy == "resend", has_one_price)
        self.disk = LedgerDisk()
        self.books = LedgerBooks(self.count)
        self.requests: list[LedgerRequest] = []
        self.callers: list[Caller] = []
        self._names = 0
        self._is_calm = False
        self.wanted = self._plan_calls()
        self.state = LedgerState()
        self._open()

    def _plan_calls(self) -> list[WantedCall]:
        """Return the calls of two units; some have equal content."""
        wanted = []
        for unit in ("one", "two"):
            contents = [self.chance.choice(["same", f"{unit} {call}"]) for call in range(4)]
            calls = [(call, content_hash("1", text.encode())) for call, text in enumerate(contents)]
            keys = call_keys(unit_prefix("g", STAGE, unit), calls)
            wanted += [WantedCall(key, STAGE, unit, call) for call, key in enumerate(keys)]
        return wanted

    def count(self, kind: LedgerKind) -> None:
        self.counts[kind] += 1
        if self._say:
            self._say(f"{kind.name.lower()}: {kind}")

    def count_decision(self, call: WantedCall, decision: Decision) -> None:
        is_equal = decision.key != call.key
        match decision.verdict:
            case Verdict.RESULT:
                self.count(LedgerKind.EQUAL_REUSED if is_equal else LedgerKind.REUSED)
            case Verdict.WAIT:
                self.count(LedgerKind.EQUAL_AWAITED if is_equal else LedgerKind.AWAITED)
            case Verdict.CALL_AGAIN:
                is_retry = self.terms.in_doubt == "retry"
                self.count(LedgerKind.RETRIED if is_retry else LedgerKind.RESENT)
            case Verdict.HELD:
                self.count(LedgerKind.HELD)
            case Verdict.PAUSED:
                self.count(LedgerKind.PAUSED)

    def call(self, key: CallKey) -> bytes:
        self.count(LedgerKind.CALL)
        if not self.provider.has_one_price:
            self.count(LedgerKind.UNKNOWN_COST)
        return self.provider.call(key)

    def _open(self) -> None:
        disk = copy.deepcopy(self.disk)
        self.state = LedgerState.recover(disk.intents.items(), disk.totals)
        self.state.declare(STAGE, self.terms)
        self.state.budget = self.budget
        for lease in set(self.books.holders.values()):
            self.books.end(lease)
        self._write()

    def _write(self) -> None:
        self.disk.write(self.state.take_changes())

    def ask(self, request: LedgerRequest) -> None:
        self.requests.append(request)

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self._step()
            self.check()
        self.complete()

    def _step(self) -> None:
        match self.chance.choices(
            ["work", "commit", "start", "lose", "kill", "crash"], [12, 8, 2, 1, 1, 0.6]
        ):
            case ["work"] if self.callers:
                self.chance.choice(self.callers).step()
            case ["commit"]:
                self.commit()
            case ["start"] if len(self.callers) < 4:
                self.start_caller()
            case ["lose"] if self.callers:
                caller = self.chance.choice(self.callers)
                if not caller.is_lost:
                    self.count(LedgerKind.LEASE_EXPIRED)
                self._end_lease(caller)
            case ["kill"] if self.callers:
                self.count(LedgerKind.CALLER_KILLED)
                caller = self.chance.choice(self.callers)
                self._end_lease(caller)
                self.callers.remove(caller)
            case ["crash"]:
                self.crash()

    def start_caller(self) -> Caller:
        self._names += 1
        wanted = self.chance.sample(self.wanted, len(self.wanted))
        caller = Caller(self, f"caller {self._names}", wanted)
        self.callers.append(caller)
        return caller

    def _end_lease(self, caller: Caller) -> None:
        """The ledger counts the caller as lost, after everything that it has received from it."""
        if not caller.is_lost:
            caller.is_lost = True
            self.ask(
                LedgerRequest(
                    lambda state, _: state.end_lease(caller.lease),
                    lambda _: self.books.end(caller.lease),
                    lambda _: None,
                )
            )

    def commit(self) -> None:
        """Carry out some requests in one transaction; the process may die before or after it."""
        count = self.chance.randint(0, len(self.requests))
        group, self.requests = self.requests[:count], self.requests[count:]
        results = copy.deepcopy(self.disk.results)
        answers = []
        for request in group:
            answers.append(request.step(self.state, results))
            self.state.validate()
        if not self._is_calm and self.chance.random() < 0.02:
            self.count(LedgerKind.TORN_GROUP)
            self.crash()
            return
        self.disk.results = results
        self._write()
        for request, answer in zip(group, answers, strict=True):
            request.note(answer)
        if not self._is_calm and self.chance.random() < 0.02:
            self.count(LedgerKind.UNANSWERED_GROUP)
            self.crash()
            return
        for request, answer in zip(group, answers, strict=True):
            request.answer(answer)

    def crash(self) -> None:
        """The ledger's process dies. Callers lose their conversations; some go on as zombies."""
        self.count(LedgerKind.CRASH)
        self.requests.clear()
        for caller in list(self.callers):
            caller.is_lost = True
            caller.is_asking = False
            if self.chance.random() < 0.5:
                self.callers.remove(caller)
        if self.budget is not None and self.chance.random() < 0.3:
            self.count(LedgerKind.BUDGET_RAISED)
            self.budget = Nanos(self.budget + self.chance.randrange(1, 30))
        self._open()

    def complete(self) -> None:
        """Let one more caller finish everything, with no budget and no more accidents.

        Calls that were held are made again.
        """
        self.check()
        self.callers.clear()
        self.requests.clear()
        self.budget = None
        if self.terms.in_doubt == "hold":
            self.terms = msgspec.structs.replace(self.terms, in_doubt="retry")
        self._open()
        caller = self.start_caller()
        self._is_calm = True
        for _ in range(300):
            caller.step()
            self.commit()
        self.check()
        assert not caller.todo
        assert not self.state.intents

    # What must hold

    def check_claim(
        self, call: WantedCall, decision: Decision, recorded: dict[CallKey, bytes]
    ) -> None:
        """A result that was acknowledged before the claim was asked is returned, and no other."""
        known = recorded.get(call.key)
        if known is None and self.terms.reuse_equal:
            equal = [key for key in recorded if content_key(key) == content_key(call.key)]
            known = recorded[equal[0]] if equal else None
        if known is not None:
            assert (decision.verdict, decision.result) == (Verdict.RESULT, known)

    def check(self) -> None:
        books, totals = self.books, self.disk.totals.get(STAGE, StageTotals())
        assert totals.doubts == books.doubts.total()
        assert totals.failures == books.failures.total()
        assert totals.calls == books.claims
        assert totals.results == len(self.disk.results.results)
        held = {key: each.lease for key, each in self.disk.intents.items() if each.lease}
        assert held == books.holders
        for key, calls in self.provider.calls.items():
            # Each call that was made more than once was in doubt each time before.
            assert calls <= 1 + books.doubts[key] + books.failures[key]
        if self.terms.reuse_equal:
            contents = Counter(content_key(key) for key in self.disk.results.results)
            assert all(count == 1 for count in contents.values())
        if self.provider.honours_keys:
            assert max(self.provider.charged.values(), default=0) <= 1
        if self.budget is not None:
            self._check_bill(self.budget)

    def _check_bill(self, budget: Nanos) -> None:
        """The budget is kept, but for calls whose cost nobody knew when they were made."""
        over = self.provider.bill - budget
        if self.provider.has_one_price:
            assert over <= 0
        elif over > 0:
            self.count(LedgerKind.OVER_BUDGET)
            unforeseen = self.books.in_flight_max
            if not self.provider.honours_keys:
                unforeseen += self.books.doubts.total()
            assert over <= PRICE_MAX * unforeseen


def _run(seed: int, steps: int, say: Say | None) -> Counter[StrEnum]:
    world = LedgerWorld(seed, say)
    world.run(steps)
    return world.counts


SIMULATION = Simulation(
    "headrace.testing.pipeline.ledger_simulator",
    "a ledger of paid calls",
    LedgerKind,
    STEPS,
    _run,
)


if __name__ == "__main__":
    # Other processes know this module by its name.
    from headrace.testing.pipeline import ledger_simulator

    sys.exit(main(ledger_simulator.SIMULATION))
