"""How much a query may read, hold and take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.errors import QueryError


@dataclass(frozen=True, slots=True)
class QueryLimits:
    samples_max: int = 50_000_000
    """Samples that a query reads from its source."""
    cells_max: int = 50_000_000
    """Series times steps of any one intermediate result; each takes about 50 bytes at most."""
    timeout_s: float = 120.0
    lookback_ms: int = 300_000
    """A sample stands for its series this long, unless a newer one or a marker follows."""
    subquery_step_ms: int = 60_000
    """The step of subqueries that name none."""

    def within(self, timeout_s: float) -> QueryLimits:
        """Return these limits for a caller that waits no longer than that."""
        return replace(self, timeout_s=min(self.timeout_s, timeout_s))


class QueryBudget:
    """What one query has used of its limits."""

    def __init__(
        self, limits: QueryLimits, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self._monotonic = monotonic
        self._deadline = monotonic() + limits.timeout_s
        self._samples = 0

    @property
    def samples_left(self) -> int:
        return self.limits.samples_max - self._samples

    @property
    def expired(self) -> bool:
        return self._monotonic() > self._deadline

    def read(self, samples: int) -> None:
        self._samples += samples
        if self.samples_left < 0:
            raise QueryError(
                f"the query reads more than {self.limits.samples_max} samples (samples_max)",
                do="ask for less time or fewer series, or raise the limit",
            )

    def hold(self, series: int, steps: int) -> None:
        if series * steps > self.limits.cells_max:
            raise QueryError(
                f"the query holds {series} series × {steps} steps at once, more than "
                f"{self.limits.cells_max} (cells_max)",
                do="use a longer step, less time or fewer series, or raise the limit",
            )

    def check_time(self) -> None:
        if self.expired:
            raise QueryError(
                f"the query took longer than {self.limits.timeout_s:g} s (timeout_s)",
                do="ask for less time or fewer series, or raise the limit",
            )
