"""One producer in one place: what Slices reported of it, and what checkpoints have shown. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SPANS_MAX = 256
"""A row has this many entries of withheld spans; with more, neighbours become one."""


class Publishable(NamedTuple):
    """What a checkpoint may show of a producer in a place."""

    commit: int
    span: int
    shows_any: bool
    """False if nothing was committed between what is shown and this commit."""


class _Spans(NamedTuple):
    """One or several spans that follow each other."""

    first: int
    """The first of them that is not shown was not committed below this clock."""
    last: int
    """The commit of the last."""
    begin: int
    """The offset where the first begins."""


class ProducerRow:
    """What is known of a producer in a place.

    - `raw` is the last commit and the span that a Slice reported in this Session, if one did.
    - `shown` is what checkpoints say: their commit never falls, and their span never goes back.
    - Spans that are reported and not shown are kept in order. Those of one report are one entry.
    """

    __slots__ = ("_spans", "raw", "shown")

    def __init__(self, shown: tuple[int, int] | None = None) -> None:
        self.raw: tuple[int, int] | None = None
        self.shown = shown
        self._spans: deque[_Spans] = deque()

    @property
    def raw_commit(self) -> int:
        return self.raw[0] if self.raw else 0

    def report(self, commit: int, span: int, since: int, first: int) -> None:
        """A Slice reported this state. The first newly committed span begins at `since` and was
        committed at `first`; `since` is -1 if none was committed."""
        self.raw = commit, span
        if since >= 0:
            self._spans.append(_Spans(first, commit, since))
            if len(self._spans) > SPANS_MAX:
                self._halve()

    def _halve(self) -> None:
        """Join neighbours. A restart then reads from a little further back."""
        spans = list(self._spans)
        joined = [
            _Spans(earlier.first, later.last, earlier.begin)
            for earlier, later in zip(spans[::2], spans[1::2], strict=False)
        ]
        self._spans = deque(joined + spans[len(joined) * 2 :])

    def shows_any(self, commit: int) -> bool:
        """Whether a span that is not shown was committed by `commit`.

        If an entry is shown in part, it is not known when its next span was committed. Then this
        is true: rather an empty checkpoint than documents that wait.
        """
        return bool(self._spans) and self._spans[0].first <= commit

    def withheld_since(self, commit: int) -> int:
        """Where the oldest span begins that is reported and lies above `commit`, which is shown
        from now on. Zero if there is none."""
        while self._spans and self._spans[0].last <= commit:
            self._spans.popleft()
        if not self._spans:
            return 0
        if self._spans[0].first <= commit:
            self._spans[0] = self._spans[0]._replace(first=commit + 1)
        return self._spans[0].begin


def rank(span: int) -> int:
    """Ascends as a producer's spans follow each other: see `frontier`."""
    return abs(span) << 1 | (span >= 0)
