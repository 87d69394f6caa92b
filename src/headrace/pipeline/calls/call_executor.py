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


class CallExecutor(Protocol):
    """Runs the calls of one operator in a worker."""

    async def open(self) -> None:
        """Set the operator up."""

    async def call(self, batch: Any, timeout_s: float | None) -> Any:
        """Return what the operator makes of a batch.

        Raises what the operator raises, and RetryableError if it does not return in time.
        """

    async def close(self) -> None: ...


def call_executor(make: Callable[[], Body], name: str) -> CallExecutor:
    """Return the executor that fits what `make` returns."""
    body = make()
    return CoroutineExecutor(body) if body.is_async else ThreadExecutor(body, make, name)


class CoroutineExecutor:
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


def _stopped() -> UnitError:
    return UnitError("the operator raised StopIteration", do="give `next` a default, or catch it")


async def _finish(value: Any) -> None:
    if isinstance(value, Awaitable):
        await value


class ThreadExecutor:
    """Threads, each with an operator of its own; a call takes one that is idle."""

    def __init__(self, body: Body, make: Callable[[], Body], name: str) -> None:
        self._first: Body | None = body
        self._make = make
        self._name = name
        self._idle: list[_CallThread] = []

    async def open(self) -> None:
        """Set one operator up, so that a failure shows at once; the others follow when needed."""
        self._idle.append(await self._open_thread())

    async def _open_thread(self) -> _CallThread:
        body, self._first = self._first or self._make(), None
        thread = _CallThread(body, self._name)
        try:
            await thread.run(body.setup)
        except BaseException:
            thread.end()
            raise
        return thread

    async def call(self, batch: Any, timeout_s: float | None) -> Any:
        thread = self._idle.pop() if self._idle else await self._open_thread()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await thread.run(thread.body.apply, batch)
        except TimeoutError as error:
            if limit.expired():
                raise _late(timeout_s) from error
            raise
        finally:
            if thread.is_busy:
                thread.end()  # It ends when the function returns, if it ever does.
            else:
                self._idle.append(thread)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for thread in idle:
            try:
                await thread.run(thread.body.close)
            finally:
                thread.end()


class _CallThread:
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
            except StopIteration:  # No future takes it, so the caller would wait for ever.
                value, answer = _stopped(), done.set_exception
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
