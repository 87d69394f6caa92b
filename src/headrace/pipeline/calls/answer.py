"""What a call knows about itself, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from headrace.errors import UsageError


class Answer(NamedTuple):
    """What an operator may return instead of rows alone: the rows, and what they cost."""

    rows: Any
    """What `process` may return."""
    cost: float | Callable[[], float] | None = None
    """A number, or a function that returns it; None: what the stage declares as cost."""
    tokens: int = 0
    """The tokens that the call used, for the rate limit."""


class CallContext(NamedTuple):
    """The call that is under way."""

    stage: str
    unit: str
    rows: tuple[int, ...]
    """The numbers of its rows in the unit."""
    idempotency_key: str
    """The same whenever this call is made again: hand it to whom you pay."""
    attempt: int
    """The first is 1."""


_current: ContextVar[CallContext] = ContextVar("headrace_call")


def current_call() -> CallContext:
    """Return the call that the calling operator is to make."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError(
            "there is no call under way here",
            do="ask for the current call inside of an operator",
        ) from None


def set_current_call(context: CallContext) -> None:
    _current.set(context)
