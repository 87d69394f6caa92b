"""Lets tasks and threads wait for a change without missing one.

Whoever waits takes a ticket first, then looks whether there is something to wait for, and only then
waits. A change after the ticket was taken ends the wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress


class Ticket:
    """Ends the wait of its holder at the next change."""

    def __init__(self) -> None:
        self._changed: Future[None] = Future()

    def end(self) -> None:
        # A task that was cancelled has cancelled its future.
        with suppress(InvalidStateError):
            self._changed.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        await asyncio.wait([asyncio.wrap_future(self._changed)], timeout=timeout_s)

    def wait_in_thread(self, timeout_s: float | None = None) -> None:
        wait([self._changed], timeout_s)


class Waiters:
    """All that wait for the same kind of change. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: set[Ticket] = set()

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        mine = Ticket()
        with self._lock:
            self._tickets.add(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._tickets.discard(mine)

    def wake(self) -> None:
        """Tell everybody that something has changed."""
        if not self._tickets:
            return
        with self._lock:
            tickets, self._tickets = self._tickets, set()
        for ticket in tickets:
            ticket.end()
