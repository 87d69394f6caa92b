"""How long to wait before another attempt, and when to give up. Pure.

Everything that starts again after a failure counts with this: a task that restarts its query, and
a reader that opens its shuffle again. The caller decides what a failure is and what progress is.
"""

from __future__ import annotations


class Backoff:
    """Counts retries in a row. The delay doubles with each one, up to `longest_s`."""

    def __init__(self, retries_max: int, *, first_s: float, longest_s: float) -> None:
        self.retries_max = retries_max
        self.retries = 0
        """Retries since the last progress."""
        self.retries_total = 0
        """Retries since the beginning."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._delay_s = first_s

    def reset(self) -> None:
        """Count from zero again, because an attempt made progress."""
        self.retries = 0
        self._delay_s = self._first_s

    def next_delay_s(self) -> float | None:
        """Seconds to wait before the next retry, or None if `retries_max` have failed in a row."""
        if self.retries == self.retries_max:
            return None
        self.retries += 1
        self.retries_total += 1
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, self._longest_s)
        return delay_s
