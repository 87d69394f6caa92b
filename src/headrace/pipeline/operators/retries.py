"""How often a call is made again, and how long to wait before. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.backoff import Backoff
from headrace.errors import RetryableError, UsageError


@dataclass(frozen=True, slots=True)
class Retries:
    """What to do when a call fails. The delay doubles from `first_s` up to `longest_s`."""

    attempts_max: int = 5
    """The first attempt counts."""
    first_s: float = 0.5
    longest_s: float = 60.0
    any_error: bool = False
    """False: only a RetryableError is tried again. True: every error and time-out is."""
    retry_after_max_s: float = 600.0
    """A server that asks for a longer pause is not called again."""

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise UsageError(
                f"attempts_max must be at least 1, got {self.attempts_max}",
                do="use 1 to make no retries",
            )
        if not 0 <= self.first_s <= self.longest_s:
            raise UsageError(
                f"first_s must be between 0 and longest_s, got {self.first_s} and {self.longest_s}",
                do="wait longer at most than at first",
            )

    def begin(self) -> Attempts:
        """Return the count of attempts of one call."""
        return Attempts(self)


class Attempts:
    """Counts the attempts of one call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._backoff = Backoff(
            retries.attempts_max - 1, first_s=retries.first_s, longest_s=retries.longest_s
        )

    @property
    def number(self) -> int:
        """The number of the attempt that is under way; the first is 1."""
        return self._backoff.retries + 1

    def next_delay_s(self, error: BaseException) -> float | None:
        """Seconds to wait before the next attempt, or None if there is to be none."""
        if not (self._retries.any_error or isinstance(error, RetryableError)):
            return None
        asked_s = getattr(error, "retry_after_s", None) or 0.0
        if asked_s > self._retries.retry_after_max_s:
            return None
        delay_s = self._backoff.next_delay_s()
        return None if delay_s is None else max(delay_s, asked_s)
