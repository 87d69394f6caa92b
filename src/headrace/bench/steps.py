"""What a benchmark is doing, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def step(text: str) -> None:
    """Say what comes next. It is said between measurements, never during one."""
    if listener := _listener.get():
        listener(text)


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Within this block, in this thread, steps are told to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
