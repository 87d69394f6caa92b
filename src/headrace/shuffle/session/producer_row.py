"""What a Session knows of one place, and of each producer in it. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Self

from headrace.clock import ZERO
from headrace.frontier import Place
from headrace.ids import FIRST
from headrace.shuffle.session.pending_transactions import CommitCap

SPANS_MAX = 256
"""A row keeps this many entries of withheld spans. If there are more, it joins neighbours."""

_UNPUBLISHED = -1


class Span(NamedTuple):
    """A producer's last span: it is open and begins at `offset`, or it ended there.

    Spans compare as they follow each other along a read. The later one has the greater offset; of
    two at one offset the open one is later, because it begins where the other one ended.
    """

    offset: int
    is_open: bool

    @classmethod
    def decode(cls, signed: int) -> Self:
        """Return the span that frontiers and reports have as one signed offset."""
        return cls(abs(signed), signed >= 0)

    def encode(self) -> int:
        return self.offset if self.is_open else -self.offset


class CommitProgress(NamedTuple):
    """A producer's last commit and its last span."""

    commit: int
    span: Span


_NO_PROGRESS = CommitProgress(ZERO, Span(FIRST, is_open=True))


class Publishable(NamedTuple):
    """What a checkpoint may show of a producer in a place."""

    progress: CommitProgress
    shows_any: bool
    """False if no document was committed between what is shown and this commit."""


class PlaceRow:
    """How far a place is reported, folded and published, and the producers in it."""

    __slots__ = (
        "place",
        "producers",
        "published_through",
        "reported_through",
        "through",
        "waiting_rows",
    )

    def __init__(self, place: Place, published_through: int = _UNPUBLISHED) -> None:
        self.place = place
        self.reported_through: int = FIRST
        """The end of the last report, which may still wait to be folded."""
        self.through: int = FIRST
        """The end of the last report that was folded. After a restart it may be less than
        `published_through` for a while."""
        self.published_through = published_through
        """The end of the place in the last checkpoint; -1 if none has the place."""
        self.producers: dict[int, ProducerRow] = {}
        self.waiting_rows: set[ProducerRow] = set()
        """Rows to look at once the place is no longer behind."""

    def start(self, offset: int) -> None:
        """A Slice reads the place from this offset."""
        self.reported_through = self.through = offset

    @property
    def is_published(self) -> bool:
        """True if a checkpoint has the place."""
        return self.published_through != _UNPUBLISHED

    @property
    def is_behind(self) -> bool:
        """True while this Session has read less than the last checkpoint says."""
        return self.through < self.published_through

    def producer(self, producer: int) -> ProducerRow:
        """Return the row of a producer, which is made if there is none."""
        if (row := self.producers.get(producer)) is None:
            row = self.producers[producer] = ProducerRow(self, producer)
        return row

    def validate(self, head: int | None) -> None:
        """Assert what holds between events; `head` is None if nobody reads the place."""
        name = f"place {self.place}"
        if head is not None:
            assert self.through <= self.reported_through <= head, f"{name} is read beyond its head"
        for producer, row in self.producers.items():
            assert (row.place, row.producer) == (self, producer), f"{name} has a foreign row"
            row.validate()
        assert self.waiting_rows <= set(self.producers.values()), f"{name} waits for foreign rows"
        assert self.is_behind or not self.waiting_rows, f"{name} caught up, and rows still wait"


class ProducerRow:
    """One producer in one place.

    - `reported_commit` is the last commit that a Slice reported; the report may still wait.
    - `raw` is the last progress that was folded in this Session; None if there was none.
    - `shown` is what checkpoints say. Its commit never falls, and its span never goes back.
    - Spans that are folded and not shown are kept in order. Those of one report are one entry.
    """

    __slots__ = ("_spans", "place", "producer", "raw", "reported_commit", "shown")

    def __init__(self, place: PlaceRow, producer: int) -> None:
        self.place = place
        self.producer = producer
        self.reported_commit: int = ZERO
        self.raw: CommitProgress | None = None
        self.shown: CommitProgress | None = None
        self._spans: deque[_Spans] = deque()

    @property
    def raw_commit(self) -> int:
        return self.raw.commit if self.raw else ZERO

    @property
    def shown_commit(self) -> int:
        return self.shown.commit if self.shown else ZERO

    def restore(self, commit: int, span: int) -> None:
        """Take over what the checkpoint shows that the Session resumes from."""
        self.reported_commit = commit
        self.shown = CommitProgress(commit, Span.decode(span))

    def fold(self, commit: int, span: int, since: int, first: int) -> None:
        """Take over one row of a report: see `progress_delta`."""
        self.raw = CommitProgress(commit, Span.decode(span))
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

    def replay(self, commit: int, span: int) -> None:
        """Take over what a replayed checkpoint shows."""
        self.shown = CommitProgress(max(self.shown_commit, commit), Span.decode(span))
        self.withheld_since(self.shown.commit)

    def shows_any(self, commit: int) -> bool:
        """Return True if a span that is not shown was committed by `commit`.

        If an entry is shown in part, nobody knows when its next span was committed. Then this
        returns True: an empty checkpoint is better than documents that wait.
        """
        return bool(self._spans) and self._spans[0].first <= commit

    def withheld_since(self, commit: int) -> int:
        """Show everything up to `commit`; return where the oldest span above it begins, or 0."""
        while self._spans and self._spans[0].last <= commit:
            self._spans.popleft()
        if not self._spans:
            return 0
        if self._spans[0].first <= commit:
            self._spans[0] = self._spans[0]._replace(first=commit + 1)
        return self._spans[0].begin

    def publishable(self, cap: CommitCap | None) -> Publishable:
        """Return what a checkpoint may show now; a pending transaction sets `cap`."""
        assert self.raw is not None
        raw, span = self.raw
        before, before_span = self.shown or _NO_PROGRESS
        commit = raw if cap is None else max(before, min(raw, cap.commit))
        shows_any = commit > before and self.shows_any(commit)
        withheld_since = self.withheld_since(commit)
        if cap is not None and commit < raw:
            span = Span(max(withheld_since, cap.begin, self._settled_through()), is_open=True)
        is_behind = self.place.is_behind
        if span <= before_span:
            # A restart reads again what was published, and is behind it for a while.
            has_closed = before_span.is_open and not span.is_open and not is_behind
            span = Span(self.place.through, is_open=False) if has_closed else before_span
        elif not span.is_open and is_behind:
            # The last checkpoint had read on from here, and this Session has yet to.
            span = Span(span.offset, is_open=True)
        return Publishable(CommitProgress(commit, span), shows_any)

    def _settled_through(self) -> int:
        """Return the offset below which everything of the producer is shown or rolled back.

        A restart must never read from further back than the last checkpoint did: that checkpoint
        has no row for producers that had settled there.
        """
        if self.shown is not None and self.shown.span.is_open:
            return self.shown.span.offset
        return self.place.published_through

    def validate(self) -> None:
        """Assert what holds between events."""
        name = f"place {self.place.place}, producer {self.producer}"
        assert self.raw_commit <= self.reported_commit, f"{name}: raw is beyond what was reported"
        assert self.shown_commit <= self.reported_commit, f"{name}: shown beyond what was reported"
        if self.raw is not None:
            assert self.raw.span.offset <= self.place.through, f"{name}: raw span is not read"
        if self.shown is not None:
            end = max(self.place.through, self.place.published_through)
            assert self.shown.span.offset <= end, f"{name}: shown span is not read"
        assert len(self._spans) <= SPANS_MAX, f"{name}: too many withheld spans"
        commits = [clock for spans in self._spans for clock in (spans.first, spans.last)]
        assert commits == sorted(commits), f"{name}: withheld spans are out of order"


class _Spans(NamedTuple):
    """One or several spans that follow each other."""

    first: int
    """The first of them that is not shown was committed at this clock or later."""
    last: int
    """The commit of the last one."""
    begin: int
    """The offset where the first one begins."""
