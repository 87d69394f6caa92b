"""A world of workers, a provider that charges, and a ledger whose process dies at any point.

One seed decides everything. The ledger's disk is the dicts that survive a crash; requests are
carried out in groups, each of which is written whole or not at all. The oracle keeps its own,
simple books of what was durable and what was answered, and compares them with the ledger's.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.pipeline.contract import InDoubtPolicy
from headrace.pipeline.ledger.keys import (
    CallKey,
    call_keys,
    content_hash,
    content_key,
    idempotency_key,
    unit_prefix,
)
from headrace.pipeline.ledger.state import (
    Decision,
    Intent,
    Lease,
    LedgerState,
    StageTerms,
    Verdict,
    WantedCall,
)
from headrace.pipeline.ledger.totals import Nanos, StageTotals
from tests.pipeline.ledger.memory_results import MemoryResults

STAGE = "paid"
PRICE = Nanos(7)
_MAY_CALL = {Verdict.CALL, Verdict.CALL_AGAIN}


@dataclass
class Disk:
    """What survives a crash of the ledger's process."""

    results: MemoryResults = field(default_factory=MemoryResults)
    intents: dict[CallKey, Intent] = field(default_factory=dict)
    totals: dict[str, StageTotals] = field(default_factory=dict)


@dataclass
class Provider:
    """Answers calls, and charges once for each idempotency key if it honours them."""

    honours_keys: bool
    calls: Counter[CallKey] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)

    def call(self, key: CallKey) -> bytes:
        self.calls[key] += 1
        name = idempotency_key(key)
        if not (self.honours_keys and self.charged[name]):
            self.charged[name] += 1
        return f"{name} {self.calls[key]}".encode()

    @property
    def bill(self) -> int:
        return PRICE * self.charged.total()


@dataclass
class Books:
    """What the oracle knows: who holds which call, and how every claim ended."""

    holders: dict[CallKey, Lease] = field(default_factory=dict)
    doubts: Counter[CallKey] = field(default_factory=Counter)
    failures: Counter[CallKey] = field(default_factory=Counter)
    claims: int = 0
    acknowledged: dict[CallKey, bytes] = field(default_factory=dict)
    """Results whose `record` was answered."""

    def end(self, lease: Lease) -> None:
        for key in [key for key, holder in self.holders.items() if holder == lease]:
            self.lose(key)

    def lose(self, key: CallKey) -> None:
        del self.holders[key]
        self.doubts[key] += 1


@dataclass
class Request:
    """Something asked of the ledger. `note` tells the oracle what became durable."""

    step: Callable[[LedgerState, MemoryResults], Any]
    note: Callable[[Any], None]
    answer: Callable[[Any], None]


class Worker:
    """Claims and makes calls. After its lease has ended it may go on for a while, as a zombie."""

    def __init__(self, world: World, name: str, wanted: list[WantedCall]) -> None:
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
            Request(
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
                self.returned.append((key, world.provider.call(key)))
            case ["fails"]:
                self._give_up(key, lambda state: state.fail(key, self.lease, in_doubt=False), "f")
            case ["times out"]:
                world.provider.call(key)
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

        self.world.ask(Request(lambda state, _: step(state), note, lambda _: None))

    def _record(self, key: CallKey, result: bytes) -> None:
        books = self.world.books

        def note(_: Any) -> None:
            books.holders.pop(key, None)

        def answer(_: Any) -> None:
            books.acknowledged.setdefault(key, self.world.disk.results.results[key])

        self.world.ask(
            Request(
                lambda state, results: state.record(STAGE, key, PRICE, result, results),
                note,
                answer,
            )
        )


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        policy: InDoubtPolicy = chance.choice(["resend", "hold", "retry"])
        self.terms = StageTerms(policy, chance.random() < 0.4, PRICE)
        self.budget = Nanos(chance.randrange(0, 60)) if chance.random() < 0.4 else None
        self.provider = Provider(honours_keys=policy == "resend")
        self.disk = Disk()
        self.books = Books()
        self.requests: list[Request] = []
        self.workers: list[Worker] = []
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

    def _open(self) -> None:
        disk = copy.deepcopy(self.disk)
        self.state = LedgerState.recover(disk.intents.items(), disk.totals)
        self.state.declare(STAGE, self.terms)
        self.state.budget = self.budget
        for lease in set(self.books.holders.values()):
            self.books.end(lease)
        self._write()

    def _write(self) -> None:
        changes = self.state.take_changes()
        for key, intent in changes.intents.items():
            if intent is None:
                self.disk.intents.pop(key, None)
            else:
                self.disk.intents[key] = intent
        self.disk.totals |= copy.deepcopy(changes.totals)

    def ask(self, request: Request) -> None:
        self.requests.append(request)

    def run(self, steps: int = 120) -> None:
        for _ in range(steps):
            self._step()
            self.check()
        self.complete()

    def _step(self) -> None:
        match self.chance.choices(
            ["work", "commit", "start", "lose", "kill", "crash"], [12, 8, 2, 1, 1, 0.6]
        ):
            case ["work"] if self.workers:
                self.chance.choice(self.workers).step()
            case ["commit"]:
                self.commit()
            case ["start"] if len(self.workers) < 4:
                self.start_worker()
            case ["lose"] if self.workers:
                self._end_lease(self.chance.choice(self.workers))
            case ["kill"] if self.workers:
                worker = self.chance.choice(self.workers)
                self._end_lease(worker)
                self.workers.remove(worker)
            case ["crash"]:
                self.crash()

    def start_worker(self) -> Worker:
        self._names += 1
        wanted = self.chance.sample(self.wanted, len(self.wanted))
        worker = Worker(self, f"worker {self._names}", wanted)
        self.workers.append(worker)
        return worker

    def _end_lease(self, worker: Worker) -> None:
        """The ledger counts the worker as lost, after everything that it has received from it."""
        if not worker.is_lost:
            worker.is_lost = True
            self.ask(
                Request(
                    lambda state, _: state.end_lease(worker.lease),
                    lambda _: self.books.end(worker.lease),
                    lambda _: None,
                )
            )

    def commit(self) -> None:
        """Carry out some requests in one transaction; the process may die before or after it."""
        count = self.chance.randint(0, len(self.requests))
        group, self.requests = self.requests[:count], self.requests[count:]
        results = copy.deepcopy(self.disk.results)
        answers = [request.step(self.state, results) for request in group]
        self.state.validate()
        if not self._is_calm and self.chance.random() < 0.02:
            self.crash()
            return
        self.disk.results = results
        self._write()
        for request, answer in zip(group, answers, strict=True):
            request.note(answer)
        if not self._is_calm and self.chance.random() < 0.02:
            self.crash()
            return
        for request, answer in zip(group, answers, strict=True):
            request.answer(answer)

    def crash(self) -> None:
        """The ledger's process dies. Workers lose their conversations; some go on as zombies."""
        self.requests.clear()
        for worker in list(self.workers):
            worker.is_lost = True
            worker.is_asking = False
            if self.chance.random() < 0.5:
                self.workers.remove(worker)
        self._open()

    def complete(self) -> None:
        """Let one more worker finish everything, with no more accidents."""
        for worker in self.workers:
            self._end_lease(worker)
        self.workers.clear()
        worker = self.start_worker()
        self._is_calm = True
        for _ in range(300):
            worker.step()
            self.commit()
        self.check()
        unfinished = {call.key for call in worker.todo}
        if self.terms.in_doubt != "hold" and self.budget is None:
            assert not unfinished

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
        for key, made in self.provider.calls.items():
            # Each call that was made more than once was in doubt each time before.
            assert made <= 1 + books.doubts[key] + books.failures[key]
        if self.terms.reuse_equal:
            contents = Counter(content_key(key) for key in self.disk.results.results)
            assert all(count == 1 for count in contents.values())
        if self.provider.honours_keys:
            assert max(self.provider.charged.values(), default=0) <= 1
        if self.budget is not None:
            assert self.provider.bill <= self.budget
