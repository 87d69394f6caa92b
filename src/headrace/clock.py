"""Clocks: 60 bits of 100 ns ticks since 1970 and a 4-bit counter, as one 64-bit integer.

The counter takes the low bits, so successive clocks are consecutive integers. A publisher that
outruns the ticks runs ahead of the wall clock; it never repeats a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NewType

Clock = NewType("Clock", int)

COUNTER_BITS = 4
TICKS_PER_SECOND = 10_000_000
CLOCK_MAX = Clock((1 << 64) - 1)
ZERO = Clock(0)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_unix_ns(ns: int) -> Clock:
    return Clock((ns // 100) << COUNTER_BITS)


def to_unix_ns(clock: Clock) -> int:
    return (clock >> COUNTER_BITS) * 100


def to_datetime(clock: Clock) -> datetime:
    """Return the moment of a clock, rounded down to the microsecond."""
    return _EPOCH + timedelta(microseconds=to_unix_ns(clock) // 1000)


def from_datetime(moment: datetime) -> Clock:
    """Return the clock of a moment with a time zone.

    A moment without a time zone would mean another instant on another machine.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; add one, such as +00:00")
    return from_unix_ns((moment - _EPOCH) // timedelta(microseconds=1) * 1000)


class ClockSource:
    """Hands out strictly ascending clocks, above a given floor and never below the wall clock."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns, floor: Clock = ZERO) -> None:
        self._now_ns = now_ns
        self._last = floor

    def take(self, count: int = 1) -> Clock:
        """Take `count` consecutive clocks, all above every earlier one, and return the first."""
        first = max(from_unix_ns(self._now_ns()), self._last + 1)
        self._last = Clock(first + count - 1)
        return Clock(first)
