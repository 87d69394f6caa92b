"""One producer in one place: what Slices reported of it, and what checkpoints have shown. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SPANS_MAX = 256
"""A row remembers this many withheld spans; with more, neighbours become one."""


class Publishable(NamedTuple):
    """What a checkpoint may show of a producer in a place."""

    commit: int
    span: int
    shows_any: bool
    """False if nothing was committed between what is shown and this commit."""


class ProducerRow:
    """What is known of a producer in a place.

    - `raw` is the last commit and the span that a Slice reported in this Session, if one did.
    - `shown` is what checkpoints say: their commit never falls, and their span never goes back.
    - Spans that are reported and not shown are kept in order, as pairs of the commit that ended
      them and the offset where they begin. Both columns ascend. A pair may stand for several
      spans: then it has the begin of the first and the commit of the last.
    """

    __slots__ = ("_spans", "raw", "shown")

    def __init__(self, shown: tuple[int, int] | None = None) -> None:
        self.raw: tuple[int, int] | None = None
        self.shown = shown
        self._spans: deque[tuple[int, int]] = deque()

    @property
    def raw_commit(self) -> int:
        return self.raw[0] if self.raw else 0

    def report(self, commit: int, span: int, since: int) -> None:
        """A Slice reported this state; `since` is where the first newly committed span begins,
        or -1 if none was committed."""
        self.raw = commit, span
        if since >= 0:
            self._spans.append((commit, since))
            if len(self._spans) > SPANS_MAX:
                self._halve()

    def _halve(self) -> None:
        """Join neighbours. A restart then reads from a little further back."""
        spans = list(self._spans)
        joined = [
            (later[0], earlier[1]) for earlier, later in zip(spans[::2], spans[1::2], strict=False)
        ]
        self._spans = deque(joined + spans[len(joined) * 2 :])

    def has_span_before(self, commit: int, begin: int) -> bool:
        """Whether a span that is not shown was committed by `commit`, or began before `begin`."""
        if not self._spans:
            return False
        ended, began = self._spans[0]
        return ended <= commit or began < begin

    def withheld_since(self, commit: int) -> int:
        """Where the oldest span begins that is reported and lies above `commit`, which is shown
        from now on. Zero if there is none."""
        while self._spans and self._spans[0][0] <= commit:
            self._spans.popleft()
        return self._spans[0][1] if self._spans else 0


def rank(span: int) -> int:
    """Ascends as a producer's spans follow each other: see `frontier`."""
    return abs(span) << 1 | (span >= 0)
