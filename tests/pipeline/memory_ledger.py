"""A ledger in memory, and a rate limit that only counts: what operators expect of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.errors import BudgetError
from headrace.pipeline.contract import CallTerms, Claimed, ClaimStatus, RecordedCall


@dataclass
class MemoryLedger:
    """Remembers all that it is asked. Every claim without a result is in doubt when repeated."""

    terms: CallTerms | None = None
    claims: dict[tuple[str, int], int] = field(default_factory=dict)
    results: dict[tuple[str, int], bytes] = field(default_factory=dict)
    contents: dict[tuple[str, int], bytes] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    doubted: list[tuple[str, int]] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    claims_max: int = 1_000
    """The budget: so many calls."""

    async def declare(self, stage: str, terms: CallTerms) -> None:
        self.terms = terms

    async def claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], *, owner: str
    ) -> list[Claimed]:
        answers = []
        for number, content in calls:
            call = (unit, number)
            assert self.contents.setdefault(call, content) == content, "the content changed"
            key = f"{stage}/{unit}/{number}"
            if call in self.results:
                answers.append(Claimed(ClaimStatus.RESULT, key, self.results[call]))
                continue
            if len(self.claims) == self.claims_max and any(each.result is None for each in answers):
                answers.append(Claimed(ClaimStatus.LATER, ""))
                continue
            if len(self.claims) == self.claims_max:
                raise BudgetError("the budget is spent", do="raise it")
            is_in_doubt = call in self.claims
            self.claims[call] = self.claims.get(call, 0) + 1
            held = is_in_doubt and self.terms is not None and self.terms.in_doubt == "hold"
            status = ClaimStatus.IN_DOUBT if is_in_doubt else ClaimStatus.CALL
            answers.append(Claimed(ClaimStatus.HELD if held else status, key))
        return answers

    async def find(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]
    ) -> list[bytes | None]:
        return [self.results.get((unit, number)) for number, _ in calls]

    async def record(self, stage: str, unit: str, results: Sequence[RecordedCall]) -> None:
        for each in results:
            assert (unit, each.call) in self.claims, "a result without a claim"
            self.results[unit, each.call] = each.result
            self.costs.append(each.cost)

    async def fail(self, stage: str, unit: str, calls: Sequence[int], error: str) -> None:
        for call in calls:
            self.failed[unit, call] = error
            del self.claims[unit, call]

    async def doubt(self, stage: str, unit: str, calls: Sequence[int]) -> None:
        self.doubted += [(unit, call) for call in calls]

    async def release(self, stage: str, unit: str, calls: Sequence[int]) -> None:
        for call in calls:
            del self.claims[unit, call]


@dataclass
class CountingLimit:
    """Lets everybody pass, and remembers."""

    acquired: list[tuple[str, int, int]] = field(default_factory=list)
    penalties: list[tuple[str, float]] = field(default_factory=list)

    async def acquire(self, name: str, *, requests: int = 1, tokens: int = 0) -> None:
        self.acquired.append((name, requests, tokens))

    async def penalize(self, name: str, retry_after_s: float) -> None:
        self.penalties.append((name, retry_after_s))
