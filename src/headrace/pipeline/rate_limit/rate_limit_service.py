"""Serves the rate limits of the driver to workers in other processes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec

from headrace.errors import UsageError
from headrace.pipeline.rate_limit.limiter import RateLimiter
from headrace.settings import ServiceSettings
from headrace.transport import Conversation, RequestClient, RequestService

RATE_LIMITS = "rate-limits"
"""The kind of service that `transport` finds them by."""


class Acquire(msgspec.Struct, frozen=True, tag="acquire"):
    name: str
    requests: int
    tokens: int


class Penalize(msgspec.Struct, frozen=True, tag="penalize"):
    name: str
    retry_after_s: float


class RateLimitService(RequestService):
    """`transport.Service` over a `RateLimiter`. It withdraws the requests of a lost caller."""

    requests = msgspec.msgpack.Decoder(tuple[int, Acquire | Penalize])

    def __init__(self, limiter: RateLimiter) -> None:
        super().__init__()
        self._limiter = limiter
        self._waiting: dict[Conversation, set[Future[None]]] = {}

    def carry_out(
        self, call: Acquire | Penalize, bodies: tuple[Any, ...], caller: Conversation
    ) -> Any:
        match call:
            case Acquire(name, requests, tokens):
                asked = self._limiter.acquire(name, requests, tokens)
                waiting = self._waiting.setdefault(caller, set())
                waiting.add(asked)
                asked.add_done_callback(waiting.discard)
                return asked
            case Penalize(name, retry_after_s):
                return self._limiter.penalize(name, retry_after_s)
        raise UsageError(
            f"the rate limits were asked for {type(call).__name__}", do="use the same version"
        )

    def end(self, caller: Conversation) -> None:
        for asked in list(self._waiting.pop(caller, ())):
            asked.cancel()


class RemoteRateLimit:
    """`pipeline.contract.RateLimit` over the limiter of another process."""

    def __init__(self, address: str, service: ServiceSettings | None = None) -> None:
        self._client = RequestClient(address, RATE_LIMITS, service)

    async def start(self) -> None:
        await self._client.start()

    async def stop(self) -> None:
        await self._client.stop()

    async def acquire(self, name: str, *, requests: int = 1, tokens: int = 0) -> None:
        await self._client.ask(Acquire(name, requests, tokens))

    async def penalize(self, name: str, retry_after_s: float) -> None:
        await self._client.ask(Penalize(name, retry_after_s))
