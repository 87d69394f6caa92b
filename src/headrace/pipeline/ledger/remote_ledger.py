"""The ledger as workers in other processes use it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.decoders import convert
from headrace.pipeline.contract import CallTerms
from headrace.pipeline.ledger import messages
from headrace.pipeline.ledger.actor import CallOutcome, ClaimAnswer
from headrace.pipeline.ledger.handle import LedgerHandle
from headrace.pipeline.ledger.keys import CallKey
from headrace.pipeline.ledger.state import Verdict
from headrace.pipeline.ledger.totals import CallInDoubt, StageTotals, to_nanos
from headrace.settings import ServiceSettings
from headrace.transport import RequestClient

_VERDICTS = {verdict.value: verdict for verdict in Verdict}


class RemoteLedger(LedgerHandle):
    """One conversation with the process that holds the ledger; calls are pipelined."""

    def __init__(self, address: str, service: ServiceSettings | None = None) -> None:
        super().__init__()
        self._client = RequestClient(address, messages.LEDGER, service)

    async def start(self) -> None:
        await self._client.start()

    async def stop(self) -> None:
        await self._client.stop()

    async def declare(self, stage: str, terms: CallTerms) -> None:
        await self._client.ask(messages.Declare(stage, terms))

    async def set_budget(self, budget: float | None) -> None:
        nanos = None if budget is None else to_nanos(budget, "a budget")
        await self._client.ask(messages.SetBudget(nanos))

    async def totals(self) -> dict[str, StageTotals]:
        answer = await self._client.ask(messages.AskTotals())
        return convert(answer, dict[str, StageTotals])

    async def calls_in_doubt(self) -> list[CallInDoubt]:
        return [CallInDoubt(*each) for each in await self._client.ask(messages.AskInDoubt())]

    async def _find(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]
    ) -> list[bytes | None]:
        return list(await self._client.ask(messages.Find(stage, unit, list(calls))))

    async def _claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], owner: str
    ) -> list[ClaimAnswer]:
        call = messages.ClaimCalls(stage, unit, list(calls), owner)
        return [
            ClaimAnswer(_VERDICTS[verdict], *rest)
            for verdict, *rest in await self._client.ask(call)
        ]

    async def _record(self, stage: str, outcomes: Sequence[CallOutcome]) -> None:
        given = [(key, result, cost) for key, result, cost in outcomes]
        await self._client.ask(messages.RecordResults(stage, given))

    async def _fail(self, keys: Sequence[CallKey], owner: str, *, in_doubt: bool) -> None:
        await self._client.ask(messages.FailCalls(list(keys), owner, in_doubt))

    async def _release(self, keys: Sequence[CallKey], owner: str) -> None:
        await self._client.ask(messages.ReleaseCalls(list(keys), owner))
