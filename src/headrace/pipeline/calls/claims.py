"""Claims the calls of a unit a little ahead of those who make them.

The driver syncs a claim to its disk, so a claim takes a moment. Calls do not wait for it, because
the next ones are claimed while others are under way. Only few: if this process dies, each claim
that is not yet a call is in doubt, like the calls themselves.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import islice

from headrace.pipeline.contract import Claimed, ClaimStatus, Ledger

FOUND_TOGETHER = 256
"""So many calls are looked up at once before any of them is claimed."""

LATER_S = 0.05


class Claims(ABC):
    """Hands out the calls of a unit, by number, to any number of tasks."""

    @abstractmethod
    async def take(self) -> tuple[int, Claimed] | None:
        """Return the next call; None if there is none left. Raises what `Ledger.claim` raises."""

    @abstractmethod
    async def close(self) -> None:
        """Give back the calls that nobody took."""


class FreeCalls(Claims):
    """Calls that need no ledger."""

    def __init__(self, calls: Iterator[int]) -> None:
        self._calls = calls

    async def take(self) -> tuple[int, Claimed] | None:
        for call in self._calls:
            return call, Claimed(ClaimStatus.CALL, uuid.uuid4().hex)
        return None

    async def close(self) -> None:
        """Nothing was claimed."""


class ClaimsAhead(Claims):
    """Calls that the ledger lets this worker make, or has results of."""

    def __init__(
        self,
        ledger: Ledger,
        place: tuple[str, str, str],
        calls: Iterator[tuple[int, bytes]],
        *,
        first: int,
        ahead: int,
    ) -> None:
        """`place` is the ledger's stage, the unit and the owner.

        Claims `first` calls at once, and then `ahead` calls whenever half of them are taken. With
        `ahead` 0, claims a call only when somebody wants it.
        """
        self._ledger = ledger
        self._stage, self._unit, self._owner = place
        self._calls = calls
        self._next = first if ahead else 1
        self._ahead = ahead
        self._missing: deque[tuple[int, bytes]] = deque()
        """Calls that have no result and are not claimed."""
        self._ready: deque[tuple[int, Claimed]] = deque()
        self._claiming: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._is_exhausted = False

    async def take(self) -> tuple[int, Claimed] | None:
        while True:
            if self._ready:
                taken = self._ready.popleft()
                if self._ahead and len(self._ready) <= self._ahead // 2:
                    self._claim_more()
                return taken
            if self._error:
                raise self._error
            self._claim_more()
            if self._claiming is None:
                return None
            await asyncio.wait([self._claiming])

    async def close(self) -> None:
        if claiming := self._claiming:
            claiming.cancel()  # it may wait for another worker
            await asyncio.wait([claiming])
        unmade = [call for call, claimed in self._ready if claimed.status in _MAY_CALL]
        self._ready.clear()
        if unmade:
            await self._ledger.release(self._stage, self._unit, unmade)

    def _claim_more(self) -> None:
        is_over = self._is_exhausted and not self._missing
        if self._claiming is None and self._error is None and not is_over:
            self._claiming = asyncio.create_task(self._claim())
            self._claiming.add_done_callback(self._end_claim)

    def _end_claim(self, claiming: asyncio.Task[None]) -> None:
        self._claiming = None
        if not claiming.cancelled() and (error := claiming.exception()):
            self._error = error

    async def _claim(self) -> None:
        if not self._missing:
            await self._find()
        wanted = [self._missing.popleft() for _ in range(min(self._next, len(self._missing)))]
        if not wanted:
            return
        self._next = max(1, self._ahead)
        claimed = await self._ledger.claim(self._stage, self._unit, wanted, owner=self._owner)
        later = 0
        for call, answer in zip(wanted, claimed, strict=True):
            if answer.status == ClaimStatus.LATER:
                self._missing.append(call)
                later += 1
            else:
                self._ready.append((call[0], answer))
        if later == len(wanted):
            await asyncio.sleep(LATER_S)

    async def _find(self) -> None:
        """Look up the next calls, until one has no result or there is none."""
        while not self._missing and not self._is_exhausted:
            calls = list(islice(self._calls, FOUND_TOGETHER))
            self._is_exhausted = len(calls) < FOUND_TOGETHER
            found = await self._ledger.find(self._stage, self._unit, calls) if calls else []
            for call, result in zip(calls, found, strict=True):
                if result is None:
                    self._missing.append(call)
                else:
                    self._ready.append((call[0], Claimed(ClaimStatus.RESULT, "", result)))
            if self._ready:
                return


_MAY_CALL = {ClaimStatus.CALL, ClaimStatus.IN_DOUBT}
