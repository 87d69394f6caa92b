"""Who may send the next request, and when. Pure.

Each limit has a bucket for requests and one for tokens. A bucket fills steadily and holds what
fits into `burst_s`. Requests pass in the order in which they were asked for, so small ones never
overtake a large one. One that wants more than a bucket holds passes when the bucket is full, and
leaves it in debt, so the rate is kept over time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple, NewType

import msgspec

from headrace.errors import UsageError

Ticket = NewType("Ticket", int)
"""Names a request that waits."""

_MINUTE_S = 60.0
_ROUNDING = 1e-6
"""Sums of floats may be off by this much; without it a request could wait for nothing."""


class RateLimitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as an operator declares it. Operators that give the same name share it."""

    name: str
    requests_per_minute: float | None = None
    """None for no limit."""
    tokens_per_minute: float | None = None
    """None for no limit."""
    burst_s: float = 1.0
    """After a pause, what this many seconds allow may pass at once, and at least one request."""

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a rate limit has no name", do="name it, for example after its server")
        for field in ("requests_per_minute", "tokens_per_minute", "burst_s"):
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(
                    f"{field} of rate limit {self.name!r} must be more than 0, got {value}",
                    do="correct it, or leave it out for no limit",
                )


class Bucket:
    """What may pass now, at a rate. A bucket without a rate lets everything pass."""

    def __init__(self, per_minute: float | None, burst_s: float) -> None:
        self._per_s = None if per_minute is None else per_minute / _MINUTE_S
        self.capacity = math.inf if self._per_s is None else max(1.0, self._per_s * burst_s)
        self.level = self.capacity

    def fill(self, elapsed_s: float) -> None:
        if self._per_s is not None:
            self.level = min(self.capacity, self.level + elapsed_s * self._per_s)

    def wait_s(self, wanted: float) -> float:
        """Return how long it takes until so much may pass."""
        missing = min(wanted, self.capacity) - self.level
        if self._per_s is None or missing <= _ROUNDING:
            return 0.0
        return missing / self._per_s

    def take(self, wanted: float) -> None:
        if self._per_s is not None:
            self.level -= wanted


class WaitingRequest(NamedTuple):
    requests: int
    tokens: int


class RateLimitState:
    """One limit, and the requests that wait for it."""

    def __init__(self, spec: RateLimitSpec, now_s: float) -> None:
        self.spec = spec
        self._requests = Bucket(spec.requests_per_minute, spec.burst_s)
        self._tokens = Bucket(spec.tokens_per_minute, spec.burst_s)
        self._now_s = now_s
        self._closed_until_s = -math.inf
        self._waiting: OrderedDict[Ticket, WaitingRequest] = OrderedDict()

    def change(self, spec: RateLimitSpec, now_s: float) -> None:
        """Go on with other rates. What is waiting, and a pause, stay as they are."""
        if spec == self.spec:
            return
        self._advance(now_s)
        debts = [min(0.0, bucket.level) for bucket in (self._requests, self._tokens)]
        self.spec = spec
        self._requests = Bucket(spec.requests_per_minute, spec.burst_s)
        self._tokens = Bucket(spec.tokens_per_minute, spec.burst_s)
        for bucket, debt in zip((self._requests, self._tokens), debts, strict=True):
            bucket.level += debt

    def ask(self, ticket: Ticket, requests: int, tokens: int) -> None:
        """Let a request wait for its turn."""
        if requests < 0 or tokens < 0:
            raise UsageError(
                f"rate limit {self.spec.name!r} was asked for {requests} requests and {tokens} "
                "tokens",
                do="ask for 0 or more",
            )
        assert ticket not in self._waiting
        self._waiting[ticket] = WaitingRequest(requests, tokens)

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a request that nobody waits for any more."""
        self._waiting.pop(ticket, None)

    def penalize(self, retry_after_s: float, now_s: float) -> None:
        """Let nothing pass for a while. A shorter pause does not end a longer one."""
        self._advance(now_s)
        if not 0 <= retry_after_s < math.inf:
            raise UsageError(
                f"rate limit {self.spec.name!r} cannot pause for {retry_after_s} s",
                do="give a number of seconds from 0 on",
            )
        self._closed_until_s = max(self._closed_until_s, self._now_s + retry_after_s)

    def grant(self, now_s: float) -> list[Ticket]:
        """Return the requests that may pass now, in their order."""
        self._advance(now_s)
        granted = []
        while self._waiting and self._wait_s() <= 0:
            ticket, wanted = self._waiting.popitem(last=False)
            self._requests.take(wanted.requests)
            self._tokens.take(wanted.tokens)
            granted.append(ticket)
        return granted

    def next_grant_s(self) -> float | None:
        """Return in how many seconds the next request may pass; None if none waits."""
        return self._wait_s() if self._waiting else None

    def _wait_s(self) -> float:
        wanted = next(iter(self._waiting.values()))
        return max(
            self._closed_until_s - self._now_s,
            self._requests.wait_s(wanted.requests),
            self._tokens.wait_s(wanted.tokens),
        )

    def _advance(self, now_s: float) -> None:
        # A clock that goes backwards neither fills nor empties a bucket.
        elapsed_s = max(0.0, now_s - self._now_s)
        self._now_s = max(self._now_s, now_s)
        self._requests.fill(elapsed_s)
        self._tokens.fill(elapsed_s)

    def validate(self) -> None:
        """Check the invariants."""
        for bucket in (self._requests, self._tokens):
            assert bucket.level <= bucket.capacity
        assert all(each.requests >= 0 and each.tokens >= 0 for each in self._waiting.values())
