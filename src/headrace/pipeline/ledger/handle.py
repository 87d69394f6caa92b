"""What both handles of a ledger share: they remember under which key a claimed call is recorded."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Self

from headrace.errors import BudgetError, UsageError
from headrace.pipeline.contract import CallTerms, Claimed, ClaimStatus, RecordedCall
from headrace.pipeline.ledger.actor import CallOutcome, ClaimAnswer
from headrace.pipeline.ledger.keys import CallKey
from headrace.pipeline.ledger.state import Verdict
from headrace.pipeline.ledger.totals import CallInDoubt, StageTotals, to_nanos
from headrace.settings import MIB

CLAIMED_TOGETHER_MAX = 4096
RECORDED_BYTES_MAX = 16 * MIB
"""Results up to about this size travel together."""

_WAIT_FIRST_S = 0.02
_WAIT_LONGEST_S = 1.0
_STATUSES = {
    Verdict.RESULT: ClaimStatus.RESULT,
    Verdict.CALL: ClaimStatus.CALL,
    Verdict.CALL_AGAIN: ClaimStatus.IN_DOUBT,
    Verdict.HELD: ClaimStatus.HELD,
}
_MAY_CALL = {Verdict.CALL, Verdict.CALL_AGAIN}


class LedgerHandle(ABC):
    """A ledger as one worker sees it: see `pipeline.contract.Ledger`."""

    def __init__(self) -> None:
        self._claimed: dict[tuple[str, str, int], tuple[CallKey, str]] = {}
        """The key and the owner of each call that is claimed here."""

    @abstractmethod
    async def start(self) -> None:
        """Connect to the ledger. Starting twice does nothing."""

    @abstractmethod
    async def stop(self) -> None:
        """Leave the ledger. The claims that this handle still has are in doubt afterwards."""

    @abstractmethod
    async def declare(self, stage: str, terms: CallTerms) -> None: ...

    @abstractmethod
    async def set_budget(self, budget: float | None) -> None:
        """Limit what all stages together may spend; None for no limit."""

    @abstractmethod
    async def totals(self) -> dict[str, StageTotals]:
        """Return the totals of each stage that has any."""

    @abstractmethod
    async def calls_in_doubt(self) -> list[CallInDoubt]:
        """Return the calls that are in doubt now, by stage, unit and number."""

    @abstractmethod
    async def _find(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]
    ) -> list[bytes | None]:
        """Return the results of the first calls, of at least one."""

    @abstractmethod
    async def _claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], owner: str
    ) -> list[ClaimAnswer]:
        """Claim calls; return answers for the first of them, for at least one."""

    @abstractmethod
    async def _record(self, stage: str, outcomes: Sequence[CallOutcome]) -> None: ...

    @abstractmethod
    async def _fail(self, keys: Sequence[CallKey], owner: str, *, in_doubt: bool) -> None: ...

    @abstractmethod
    async def _release(self, keys: Sequence[CallKey], owner: str) -> None: ...

    async def find(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]
    ) -> list[bytes | None]:
        found: list[bytes | None] = []
        while len(found) < len(calls):
            asked = calls[len(found) : len(found) + CLAIMED_TOGETHER_MAX]
            found += await self._find(stage, unit, asked)
        return found

    async def claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], *, owner: str
    ) -> list[Claimed]:
        answers: dict[int, Claimed] = {}
        wait_s = _WAIT_FIRST_S
        asked = list(enumerate(calls))
        while asked:
            verdicts = await self._claim_all(stage, unit, asked, answers, owner)
            if not verdicts.keys().isdisjoint(_MAY_CALL):
                break
            if (why := verdicts.get(Verdict.PAUSED)) is not None:
                raise BudgetError(
                    why, do="raise the budget and run the pipeline again; nothing is lost"
                )
            asked = [(index, calls[index]) for index, _ in asked if index not in answers]
            if asked:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_LONGEST_S)
        later = Claimed(ClaimStatus.LATER, "")
        return [answers.get(index, later) for index in range(len(calls))]

    async def _claim_all(
        self,
        stage: str,
        unit: str,
        asked: Sequence[tuple[int, tuple[int, bytes]]],
        answers: dict[int, Claimed],
        owner: str,
    ) -> dict[Verdict, str]:
        """Claim calls once and note the final answers; return all verdicts, and why."""
        verdicts: dict[Verdict, str] = {}
        begin = 0
        while begin < len(asked):
            group = asked[begin : begin + CLAIMED_TOGETHER_MAX]
            found = await self._claim_or_release(stage, unit, [call for _, call in group], owner)
            for (index, (call, _)), answer in zip(group, found, strict=False):
                verdict, key, idempotency_key, result, why = answer
                verdicts[verdict] = why
                if status := _STATUSES.get(verdict):
                    answers[index] = Claimed(status, idempotency_key, result)
                if verdict in _MAY_CALL:
                    self._claimed[stage, unit, call] = key, owner
            begin += len(found)
        return verdicts

    async def _claim_or_release(
        self,
        stage: str,
        unit: str,
        calls: Sequence[tuple[int, bytes]],
        owner: str,
    ) -> list[ClaimAnswer]:
        """Claim calls. If the task is cancelled meanwhile, nobody makes them: give them back."""
        claiming = asyncio.ensure_future(self._claim(stage, unit, calls, owner))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            answers = await claiming
            await self._release(
                [answer.key for answer in answers if answer.verdict in _MAY_CALL], owner
            )
            raise

    async def record(self, stage: str, unit: str, results: Sequence[RecordedCall]) -> None:
        keys = [self._claim_of(stage, unit, each.call)[0] for each in results]
        what = f"the cost of a call of stage {stage!r}"
        outcomes = [
            CallOutcome(key, each.result, to_nanos(each.cost, what))
            for key, each in zip(keys, results, strict=True)
        ]
        # A caller that is cancelled has paid all the same.
        await asyncio.shield(self._record_groups(stage, outcomes))
        for each in results:
            self._claimed.pop((stage, unit, each.call), None)

    async def _record_groups(self, stage: str, outcomes: Iterable[CallOutcome]) -> None:
        waiting = iter(outcomes)
        while group := _take_group(waiting):
            await self._record(stage, group)

    async def fail(self, stage: str, unit: str, calls: Sequence[int], error: str) -> None:
        for owner, keys in self._give_up(stage, unit, calls):
            await asyncio.shield(self._fail(keys, owner, in_doubt=False))

    async def doubt(self, stage: str, unit: str, calls: Sequence[int]) -> None:
        for owner, keys in self._give_up(stage, unit, calls):
            await asyncio.shield(self._fail(keys, owner, in_doubt=True))

    async def release(self, stage: str, unit: str, calls: Sequence[int]) -> None:
        for owner, keys in self._give_up(stage, unit, calls):
            await asyncio.shield(self._release(keys, owner))

    def _give_up(
        self, stage: str, unit: str, calls: Sequence[int]
    ) -> Iterable[tuple[str, list[CallKey]]]:
        """Forget claimed calls; return their keys by owner."""
        by_owner: dict[str, list[CallKey]] = {}
        for key, owner in [self._claim_of(stage, unit, call) for call in calls]:
            by_owner.setdefault(owner, []).append(key)
        for call in calls:
            self._claimed.pop((stage, unit, call), None)
        return by_owner.items()

    def _claim_of(self, stage: str, unit: str, call: int) -> tuple[CallKey, str]:
        found = self._claimed.get((stage, unit, call))
        if found is None:
            raise UsageError(
                f"call {call} of unit {unit!r} in stage {stage!r} is not claimed here",
                do="claim it first",
            )
        return found

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()


def _take_group(outcomes: Iterable[CallOutcome]) -> list[CallOutcome]:
    group: list[CallOutcome] = []
    size = 0
    for outcome in islice(outcomes, CLAIMED_TOGETHER_MAX):
        group.append(outcome)
        size += len(outcome.result)
        if size >= RECORDED_BYTES_MAX:
            break
    return group
