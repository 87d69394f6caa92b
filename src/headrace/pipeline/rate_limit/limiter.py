"""The thread that lets requests pass when their turn has come."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

from headrace.errors import HeadraceError, UsageError, bug
from headrace.pipeline.rate_limit.state import RateLimitSpec, RateLimitState, Ticket


class RateLimiter:
    """All rate limits of a run, for any number of threads.

    A name that nobody declared has no rates. It still pauses when a server asks for it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._changed = threading.Condition()
        self._limits: dict[str, RateLimitState] = {}
        self._waiting: dict[Ticket, tuple[str, Future[None]]] = {}
        self._tickets = count(1)
        self._refusal: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-rate-limit", daemon=True)
        self._thread.start()

    def declare(self, spec: RateLimitSpec) -> None:
        """Set the rates of a limit."""
        with self._changed:
            self._limit(spec.name).change(spec, self._now_s())
            self._changed.notify()

    def acquire(self, name: str, requests: int, tokens: int) -> Future[None]:
        """Return a future that is done when the limit allows so much, or that can be cancelled."""
        asked: Future[None] = Future()
        with self._changed:
            if self._refusal:
                raise self._refusal
            ticket = Ticket(next(self._tickets))
            self._limit(name).ask(ticket, requests, tokens)
            self._waiting[ticket] = name, asked
            self._changed.notify()
        asked.add_done_callback(lambda done: self._withdraw(ticket) if done.cancelled() else None)
        return asked

    def penalize(self, name: str, retry_after_s: float) -> None:
        with self._changed:
            self._limit(name).penalize(retry_after_s, self._now_s())

    def refuse(self, refusal: HeadraceError) -> None:
        """Let nothing pass from now on: whoever waits or asks gets the error."""
        self._stop(refusal)

    def close(self) -> None:
        """Refuse whoever still waits, and stop."""
        self._stop(UsageError("the rate limits are closed", do="start the pipeline again"))
        self._thread.join()

    def _limit(self, name: str) -> RateLimitState:
        limit = self._limits.get(name)
        if limit is None:
            spec = RateLimitSpec(name=name)
            limit = self._limits[name] = RateLimitState(spec, self._now_s())
        return limit

    def _withdraw(self, ticket: Ticket) -> None:
        with self._changed:
            if found := self._waiting.pop(ticket, None):
                self._limits[found[0]].withdraw(ticket)
                self._changed.notify()

    def _run(self) -> None:
        try:
            while self._refusal is None:
                self._grant_and_wait()
        except Exception as error:  # noqa: BLE001  whoever waits is told
            self._stop(bug("the rate limits", error))

    def _grant_and_wait(self) -> None:
        with self._changed:
            now_s = self._now_s()
            tickets = [each for limit in self._limits.values() for each in limit.grant(now_s)]
            granted = [self._waiting.pop(ticket)[1] for ticket in tickets]
            if not granted and self._refusal is None:
                waits = [limit.next_grant_s() for limit in self._limits.values()]
                self._changed.wait(min((each for each in waits if each is not None), default=None))
        for asked in granted:
            if asked.set_running_or_notify_cancel():
                asked.set_result(None)

    def _stop(self, refusal: HeadraceError) -> None:
        with self._changed:
            self._refusal = self._refusal or refusal
            waiting = [asked for _, asked in self._waiting.values()]
            self._waiting.clear()
            self._changed.notify()
        for asked in waiting:
            if asked.set_running_or_notify_cancel():
                asked.set_exception(refusal)


class LocalRateLimit:
    """`pipeline.contract.RateLimit` over the limiter of this process."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def acquire(self, name: str, *, requests: int = 1, tokens: int = 0) -> None:
        await asyncio.wrap_future(self._limiter.acquire(name, requests, tokens))

    async def penalize(self, name: str, retry_after_s: float) -> None:
        self._limiter.penalize(name, retry_after_s)
