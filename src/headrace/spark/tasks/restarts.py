"""How often, and how long after, a task that failed is started again. Pure."""

from __future__ import annotations

_FIRST_S = 0.5
_LONGEST_S = 30.0


class Restarts:
    """So many in a row, each after twice the time; one that got something done begins anew."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        """Since something was done."""
        self.total = 0

    def delay_s(self, *, progressed: bool) -> float | None:
        """How long to wait before the next; nothing if that was the last."""
        if progressed:
            self.count = 0
        if self.count == self.most:
            return None
        self.count += 1
        self.total += 1
        return float(min(_FIRST_S * 2 ** (self.count - 1), _LONGEST_S))
