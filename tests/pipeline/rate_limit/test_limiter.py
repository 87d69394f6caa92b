"""Rate limits shared by workers of this process and of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from headrace.errors import HeadraceError, UsageError
from headrace.pipeline.contract import RateLimit
from headrace.pipeline.rate_limit.limiter import LocalRateLimit, RateLimiter
from headrace.pipeline.rate_limit.rate_limit_service import (
    RATE_LIMITS,
    RateLimitService,
    RemoteRateLimit,
)
from headrace.pipeline.rate_limit.state import RateLimitSpec
from headrace.settings import ServiceSettings
from headrace.transport import Server


@pytest.fixture
def limiter() -> Iterator[RateLimiter]:
    limiter = RateLimiter()
    yield limiter
    limiter.close()


def contract(limit: LocalRateLimit | RemoteRateLimit) -> RateLimit:
    return limit


def test_workers_share_one_rate(limiter: RateLimiter) -> None:
    limiter.declare(RateLimitSpec(name="server", requests_per_minute=60 * 50, burst_s=0.02))

    async def test(address: str) -> float:
        remote = RemoteRateLimit(address)
        await remote.start()
        begin_s = time.monotonic()
        workers = [contract(LocalRateLimit(limiter)), contract(remote)]
        await asyncio.gather(*(each.acquire("server") for each in workers * 10))
        passed_s = time.monotonic() - begin_s
        await remote.stop()
        return passed_s

    with Server({RATE_LIMITS: RateLimitService(limiter)}, ServiceSettings()) as server:
        passed_s = asyncio.run(asyncio.wait_for(test(server.address), 60))
    assert passed_s >= 19 / 50 - 0.001


def test_a_pause_of_one_worker_holds_for_the_other(limiter: RateLimiter) -> None:
    async def test(address: str) -> None:
        remote = RemoteRateLimit(address)
        await remote.start()
        begin_s = time.monotonic()
        await remote.penalize("server", 0.2)
        await LocalRateLimit(limiter).acquire("other")
        await LocalRateLimit(limiter).acquire("server")
        assert time.monotonic() - begin_s >= 0.2
        await remote.stop()

    with Server({RATE_LIMITS: RateLimitService(limiter)}, ServiceSettings()) as server:
        asyncio.run(asyncio.wait_for(test(server.address), 60))


@pytest.mark.long
def test_a_worker_that_leaves_waits_no_more(limiter: RateLimiter) -> None:
    limiter.declare(RateLimitSpec(name="server", requests_per_minute=60))

    async def test(address: str) -> None:
        remote = RemoteRateLimit(address)
        await remote.start()
        local = LocalRateLimit(limiter)
        await local.acquire("server")
        left = asyncio.ensure_future(remote.acquire("server", requests=100_000))
        cancelled = asyncio.ensure_future(local.acquire("server", requests=100_000))
        await asyncio.wait([left, cancelled], timeout=0.1)
        await remote.stop()
        cancelled.cancel()
        with pytest.raises(HeadraceError):
            await left
        await local.acquire("server")

    with Server({RATE_LIMITS: RateLimitService(limiter)}, ServiceSettings()) as server:
        asyncio.run(asyncio.wait_for(test(server.address), 60))


def test_closing_refuses_whoever_waits() -> None:
    limiter = RateLimiter()
    limiter.penalize("server", 1000)
    waiting = limiter.acquire("server", 1, 0)
    limiter.close()
    with pytest.raises(UsageError, match="the rate limits are closed"):
        waiting.result(10)
    with pytest.raises(UsageError, match="the rate limits are closed"):
        limiter.acquire("server", 1, 0)
