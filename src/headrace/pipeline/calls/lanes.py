"""Where calls run: coroutines in the worker's event loop, functions in threads of their own.

An operator's function runs in the thread that set the operator up, because models and connections
are often bound to one. A thread cannot be ended from outside. If a function does not return in
time, its thread and its operator are abandoned, and the next call gets new ones.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace.errors import RetryableError, UnitError
from headrace.pipeline.calls.bodies import Body


class Lanes(Protocol):
    """Runs calls of one operator, as many at once as there are lanes."""

    async def open(self) -> None:
        """Set the operator up."""

    async def call(self, batch: Any, timeout_s: float | None) -> Any:
        """Return what the operator makes of a batch.

        Raises what the operator raises, and RetryableError if it does not return in time.
        """

    async def close(self) -> None: ...


def open_lanes(make: Callable[[], Body], count: int, name: str) -> Lanes:
    """Return lanes that fit what `make` returns."""
    body = make()
    return CoroutineLanes(body) if body.is_async else ThreadLanes(body, make, count, name)


class CoroutineLanes:
    """Coroutines of the running event loop share one operator."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def open(self) -> None:
        await _finish(self._body.setup())

    async def call(self, batch: Any, timeout_s: float | None) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._body.apply(batch)
        except TimeoutError as error:
            if limit.expired():
                raise _late(timeout_s) from error
            raise
        except SystemExit as exit:
            raise _exited(exit) from exit

    async def close(self) -> None:
        await _finish(self._body.close())


def _late(timeout_s: float | None) -> RetryableError:
    return RetryableError(f"the call did not return within {timeout_s:g} s", in_doubt=True)


def _exited(exit: SystemExit) -> UnitError:
    return UnitError(f"the operator called sys.exit({exit.code!r})")


async def _finish(value: Any) -> None:
    if isinstance(value, Awaitable):
        await value


class ThreadLanes:
    """Threads, each with an operator of its own; a call takes one that is idle."""

    def __init__(self, body: Body, make: Callable[[], Body], count: int, name: str) -> None:
        self._first: Body | None = body
        self._make = make
        self._count = count
        self._name = name
        self._idle: list[_Lane] = []

    async def open(self) -> None:
        """Set one operator up, so that a failure shows at once; the others follow when needed."""
        self._idle.append(await self._open_lane())

    async def _open_lane(self) -> _Lane:
        body, self._first = self._first or self._make(), None
        lane = _Lane(body, self._name)
        try:
            await lane.run(body.setup)
        except BaseException:
            lane.end()
            raise
        return lane

    async def call(self, batch: Any, timeout_s: float | None) -> Any:
        lane = self._idle.pop() if self._idle else await self._open_lane()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await lane.run(lane.body.apply, batch)
        except TimeoutError as error:
            if limit.expired():
                raise _late(timeout_s) from error
            raise
        finally:
            if lane.is_busy:
                lane.end()  # Its thread ends when the function returns, if it ever does.
            else:
                self._idle.append(lane)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for lane in idle:
            try:
                await lane.run(lane.body.close)
            finally:
                lane.end()


class _Lane:
    """One daemon thread: a function that hangs must not keep the process from ending."""

    def __init__(self, body: Body, name: str) -> None:
        self.body = body
        self.is_busy = False
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (work := self._asked.get()) is not None:
            work()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in the thread, in the caller's context variables."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                value = context.run(function, *arguments)
            except SystemExit as exit:
                value = _exited(exit)
                answer: Callable[[Any], None] = done.set_exception
            except BaseException as error:  # noqa: BLE001  the caller raises it
                value, answer = error, done.set_exception
            else:
                answer = done.set_result
            if not loop.is_closed():  # It may be, if the function hung for long.
                loop.call_soon_threadsafe(self._finish, done, answer, value)

        self.is_busy = True
        self._asked.put(work)
        return await done

    def _finish(self, done: asyncio.Future[Any], answer: Callable[[Any], None], value: Any) -> None:
        self.is_busy = False
        if not done.done():  # Else nobody waits for it any more.
            answer(value)

    def end(self) -> None:
        self._asked.put(None)
