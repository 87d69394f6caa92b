"""What the calls of a stage came to, in numbers and in money. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple, NewType

import msgspec

from headrace.errors import UsageError

Nanos = NewType("Nanos", int)
"""Money in billionths, so that sums are exact."""

NANOS = 1_000_000_000


class StageTotals(msgspec.Struct, kw_only=True):
    """What a stage's calls came to, over all runs of one generation."""

    calls: int = 0
    """Claims that let an owner make a call, whether or not it got to it."""
    results: int = 0
    failures: int = 0
    """Calls that failed with a known outcome."""
    releases: int = 0
    """Claims that their owner gave back before it made the call."""
    doubts: int = 0
    """Claims that ended without an outcome: each of these calls may have been made and paid."""
    resends: int = 0
    """Calls in doubt that were made again with the same idempotency key."""
    retries: int = 0
    """Calls in doubt that were made again and may be paid twice."""
    repeats: int = 0
    """Results that came after another one of the same call: these were made twice for certain."""
    spent: Nanos = Nanos(0)
    spent_in_doubt: Nanos = Nanos(0)
    """What retried calls may have cost in addition."""
    dearest: Nanos | None = None
    """The most that a call has cost; None before the first result."""
    reused: int = 0
    """Claims of this run that were answered with a recorded result. The store does not keep it."""

    @property
    def cost(self) -> float:
        """What the results of the stage cost."""
        return to_money(self.spent)


class CallFigures(NamedTuple):
    """What became of a stage's calls, and how many have no end yet."""

    totals: StageTotals
    under_way: int = 0
    """Calls that are claimed: they are being made, or will be in a moment."""
    in_doubt: int = 0
    """Calls that may have been made, and that nobody makes now."""


class CallInDoubt(NamedTuple):
    """A call that may have been made, and that nobody makes now."""

    stage: str
    unit: str
    call: int
    doubts: int
    """How many attempts at it are in doubt."""
    idempotency_key: str


def to_nanos(money: float | Decimal, what: str) -> Nanos:
    """Return money in billionths. Raises UsageError if it is negative or no number."""
    try:
        exact = Decimal(str(money)) * NANOS
        if exact >= 0:
            return Nanos(int(exact.to_integral_value()))
    except ArithmeticError as error:
        raise _no_money(money, what) from error
    raise _no_money(money, what)


def _no_money(money: object, what: str) -> UsageError:
    return UsageError(f"{what} must be a number from 0 on, got {money!r}", do="correct it")


def to_money(nanos: int) -> float:
    return nanos / NANOS
