"""The ledger as workers in the driver's process use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from headrace.pipeline.contract import CallTerms
from headrace.pipeline.ledger.actor import CallOutcome, ClaimAnswer, LedgerActor
from headrace.pipeline.ledger.handle import LedgerHandle
from headrace.pipeline.ledger.keys import CallKey
from headrace.pipeline.ledger.state import Lease
from headrace.pipeline.ledger.totals import CallInDoubt, StageTotals, to_nanos


class LocalLedger(LedgerHandle):
    """The contract over a `LedgerActor` of this process."""

    def __init__(self, actor: LedgerActor) -> None:
        super().__init__()
        self.actor = actor
        self._owns_actor = False
        self._prefix = actor.new_lease_prefix()
        self._leases: set[Lease] = set()

    @classmethod
    def open(cls, path: Path, generation: str) -> Self:
        """Return a handle of the ledger in a directory; stopping it closes the ledger."""
        ledger = cls(LedgerActor.open(path, generation))
        ledger._owns_actor = True
        return ledger

    async def start(self) -> None:
        """Nothing needs to be started."""

    async def stop(self) -> None:
        if self._leases:
            ended, self._leases = self._leases, set()
            await asyncio.wrap_future(self.actor.end_leases(ended))
        if self._owns_actor:
            self._owns_actor = False
            await asyncio.to_thread(self.actor.close)

    async def declare(self, stage: str, terms: CallTerms) -> None:
        await asyncio.wrap_future(self.actor.declare(stage, terms))

    async def set_budget(self, budget: float | None) -> None:
        nanos = None if budget is None else to_nanos(budget, "a budget")
        await asyncio.wrap_future(self.actor.set_budget(nanos))

    async def totals(self) -> dict[str, StageTotals]:
        return await asyncio.wrap_future(self.actor.totals())

    async def calls_in_doubt(self) -> list[CallInDoubt]:
        return await asyncio.wrap_future(self.actor.calls_in_doubt())

    async def _find(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]
    ) -> list[bytes | None]:
        return await asyncio.to_thread(self.actor.find, stage, unit, calls)

    async def _claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], owner: str
    ) -> list[ClaimAnswer]:
        lease = self._lease(owner)
        # Results that are not in memory come from the disk, which must not hold up the event loop.
        asked = await asyncio.to_thread(self.actor.claim, stage, unit, calls, lease)
        return await asyncio.wrap_future(asked)

    async def _record(self, stage: str, outcomes: Sequence[CallOutcome]) -> None:
        await asyncio.wrap_future(self.actor.record(stage, outcomes))

    async def _fail(self, keys: Sequence[CallKey], owner: str, *, in_doubt: bool) -> None:
        await asyncio.wrap_future(self.actor.fail(keys, self._lease(owner), in_doubt=in_doubt))

    async def _release(self, keys: Sequence[CallKey], owner: str) -> None:
        await asyncio.wrap_future(self.actor.release(keys, self._lease(owner)))

    def _lease(self, owner: str) -> Lease:
        lease = Lease(self._prefix + owner)
        self._leases.add(lease)
        return lease
