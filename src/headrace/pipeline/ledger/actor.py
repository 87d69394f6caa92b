"""The thread that writes the ledger: it decides, commits, and then answers.

Everything that waits shares one transaction, so the cost of a sync is shared by all claims and
results that came while the last one ran. If a transaction fails, the state is ahead of the disk, so
the ledger refuses everything from then on; opened again, it continues from the disk.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from headrace.errors import HeadraceError, UsageError, bug
from headrace.pipeline.contract import CallTerms
from headrace.pipeline.ledger.keys import (
    CallKey,
    call_keys,
    idempotency_key,
    unit_prefix,
)
from headrace.pipeline.ledger.ledger_store import LedgerStore, StoreTransaction
from headrace.pipeline.ledger.state import (
    Lease,
    LedgerState,
    StageTerms,
    Verdict,
    WantedCall,
)
from headrace.pipeline.ledger.totals import CallFigures, CallInDoubt, Nanos, StageTotals
from headrace.settings import MIB

GROUP_MAX = 4096
"""One transaction carries out at most this many requests."""

RESULT_BYTES_MAX = 64 * MIB
"""The ledger takes no larger results."""

ANSWER_BYTES_MAX = 16 * MIB
"""A claim is answered for as many calls as have results of about this size."""

T = TypeVar("T")
_Step = Callable[[LedgerState, StoreTransaction], Any]


class ClaimAnswer(NamedTuple):
    """The answer about one call."""

    verdict: Verdict
    key: CallKey
    """Record the result under this key."""
    idempotency_key: str
    """Empty if there is a result."""
    result: bytes | None
    why: str = ""
    """Which budget is spent, if the verdict is PAUSED."""


class CallOutcome(NamedTuple):
    """What a claimed call returned."""

    key: CallKey
    result: bytes
    cost: Nanos


class LedgerActor:
    """The ledger of one generation, for any number of threads."""

    def __init__(self, store: LedgerStore) -> None:
        """Continue from what the store holds, which the actor closes."""
        self._store = store
        self._requests: SimpleQueue[tuple[_Step, Future[Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._refusal: HeadraceError | None = None
        self._is_closed = False
        self._reused: dict[str, int] = {}
        self._handles = count(1)
        try:
            self._state = LedgerState.recover(*self._store.load())
            with self._store.write() as txn:
                txn.put_changes(self._state.take_changes())
        except BaseException:
            self._store.close()
            raise
        self._thread = threading.Thread(target=self._run, name="headrace-ledger", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, generation: str) -> Self:
        return cls(LedgerStore(path, generation))

    def close(self) -> None:
        """Carry out what was asked, and stop. Claims that are still held are in doubt."""
        with self._lock:
            if self._refusal is None:
                self._refusal = UsageError("the ledger is closed", do="open it again")
            is_first, self._is_closed = not self._is_closed, True
            self._requests.put(None)
        self._thread.join()
        if is_first:
            self._store.close()

    # What callers ask

    def declare(self, stage: str, terms: CallTerms) -> Future[None]:
        exact = StageTerms.of(stage, terms)
        return self._ask(lambda state, _: state.declare(stage, exact))

    def set_budget(self, budget: Nanos | None) -> Future[None]:
        def change(state: LedgerState, _: StoreTransaction) -> None:
            state.budget = budget

        return self._ask(change)

    def find(self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Return the results of calls; only of the first of them if the results are large."""
        keys = call_keys(unit_prefix(self._store.generation, stage, unit), calls)
        found = self._store.find_results(keys, ANSWER_BYTES_MAX)
        self._count_reused(stage, len(found) - found.count(None))
        return found

    def claim(
        self,
        stage: str,
        unit: str,
        calls: Sequence[tuple[int, bytes]],
        lease: Lease,
    ) -> Future[list[ClaimAnswer]]:
        """Claim calls. Answers only for the first of them if their results are large."""
        keys = call_keys(unit_prefix(self._store.generation, stage, unit), calls)
        results = self._store.find_results(keys, ANSWER_BYTES_MAX)
        known = [
            None if result is None else ClaimAnswer(Verdict.RESULT, key, "", result)
            for key, result in zip(keys, results, strict=False)
        ]
        unknown = [
            (index, WantedCall(keys[index], stage, unit, calls[index][0]))
            for index, answer in enumerate(known)
            if answer is None
        ]
        self._count_reused(stage, len(known) - len(unknown))
        if not unknown:
            done: Future[Any] = Future()
            done.set_result(known)
            return done

        def step(state: LedgerState, txn: StoreTransaction) -> list[Any]:
            for index, wanted in unknown:
                verdict, key, result, why = state.claim(wanted, lease, txn)
                name = "" if verdict == Verdict.RESULT else idempotency_key(key)
                known[index] = ClaimAnswer(verdict, key, name, result, why)
                self._count_reused(stage, int(verdict == Verdict.RESULT))
            return known

        return self._ask(step)

    def record(self, stage: str, outcomes: Sequence[CallOutcome]) -> Future[None]:
        """Record results. The first result of a call is the one that is kept."""
        for outcome in outcomes:
            if len(outcome.result) > RESULT_BYTES_MAX:
                raise UsageError(
                    f"a result of stage {stage!r} has {len(outcome.result)} bytes, more than "
                    f"{RESULT_BYTES_MAX}",
                    do="store it elsewhere, and return where it is",
                )

        def step(state: LedgerState, txn: StoreTransaction) -> None:
            for key, result, cost in outcomes:
                state.record(stage, key, cost, result, txn)

        return self._ask(step)

    def fail(self, keys: Sequence[CallKey], lease: Lease, *, in_doubt: bool) -> Future[None]:
        def step(state: LedgerState, _: StoreTransaction) -> None:
            for key in keys:
                state.fail(key, lease, in_doubt=in_doubt)

        return self._ask(step)

    def release(self, keys: Sequence[CallKey], lease: Lease) -> Future[None]:
        def step(state: LedgerState, _: StoreTransaction) -> None:
            for key in keys:
                state.release(key, lease)

        return self._ask(step)

    def new_lease_prefix(self) -> str:
        """Return what the leases of one handle begin with."""
        return f"{next(self._handles)}/"

    def end_leases(self, leases: Collection[Lease]) -> Future[None]:
        def step(state: LedgerState, _: StoreTransaction) -> None:
            for lease in sorted(leases):
                state.end_lease(lease)

        return self._ask(step)

    def totals(self) -> Future[dict[str, StageTotals]]:
        return self._ask(lambda state, _: self._copy_totals(state))

    def _copy_totals(self, state: LedgerState) -> dict[str, StageTotals]:
        stages = {*state.totals, *self._reused}
        found = {stage: state.totals.get(stage) or StageTotals() for stage in sorted(stages)}
        return {
            stage: msgspec.structs.replace(totals, reused=self._reused.get(stage, 0))
            for stage, totals in found.items()
        }

    def stop_calls(self) -> Future[None]:
        """Let nobody claim another call. Calls under way may end, and are recorded."""

        def change(state: LedgerState, _: StoreTransaction) -> None:
            state.is_stopping = True

        return self._ask(change)

    def figures(self) -> Future[dict[str, CallFigures]]:
        """Return what became of the calls of each stage, as of one moment."""

        def step(state: LedgerState, _: StoreTransaction) -> dict[str, CallFigures]:
            in_doubt = Counter(each.stage for each in state.intents.values() if each.is_in_doubt)
            intents = Counter(each.stage for each in state.intents.values())
            return {
                stage: CallFigures(totals, intents[stage] - in_doubt[stage], in_doubt[stage])
                for stage, totals in self._copy_totals(state).items()
            }

        return self._ask(step)

    def calls_in_doubt(self) -> Future[list[CallInDoubt]]:
        def step(state: LedgerState, _: StoreTransaction) -> list[CallInDoubt]:
            return sorted(
                CallInDoubt(each.stage, each.unit, each.call, each.doubts, idempotency_key(key))
                for key, each in state.intents.items()
                if each.is_in_doubt
            )

        return self._ask(step)

    def validate(self) -> None:
        self._ask(lambda state, _: state.validate()).result()

    # What the thread does

    def _count_reused(self, stage: str, count: int) -> None:
        if count:
            with self._lock:
                self._reused[stage] = self._reused.get(stage, 0) + count

    def _ask(self, step: Callable[[LedgerState, StoreTransaction], T]) -> Future[T]:
        asked: Future[T] = Future()
        with self._lock:
            if self._refusal:
                raise self._refusal
            self._requests.put((step, asked))
        return asked

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._take_group()
            try:
                answers = self._carry_out(group)
            except Exception as error:  # noqa: BLE001  everybody who asks is told
                self._break(error, [asked for _, asked in group])
                continue
            for (_, asked), answer in zip(group, answers, strict=True):
                asked.set_result(answer)

    def _take_group(self) -> tuple[list[tuple[_Step, Future[Any]]], bool]:
        """Wait for a request; return it with those that wait too, and True if more may come."""
        group: list[tuple[_Step, Future[Any]]] = []
        request = self._requests.get()
        while request is not None:
            if request[1].set_running_or_notify_cancel():
                group.append(request)
            if len(group) == GROUP_MAX:
                return group, True
            try:
                request = self._requests.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _carry_out(self, group: Sequence[tuple[_Step, Future[Any]]]) -> list[Any]:
        with self._store.write() as txn:
            answers = [step(self._state, txn) for step, _ in group]
            txn.put_changes(self._state.take_changes())
        return answers

    def _break(self, error: Exception, waiting: Sequence[Future[Any]]) -> None:
        refusal = error if isinstance(error, HeadraceError) else bug("the ledger", error)
        with self._lock:
            self._refusal = refusal
            late = []
            while not self._requests.empty():
                if (request := self._requests.get()) is None:
                    self._requests.put(None)
                    break
                late.append(request[1])
        for asked in (*waiting, *late):
            if asked.running() or asked.set_running_or_notify_cancel():
                asked.set_exception(refusal)
