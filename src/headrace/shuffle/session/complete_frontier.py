"""The complete frontier: what Slices reported, as far as transactions are complete. Pure.

Slices report raw progress. What checkpoints publish lags behind it: a producer's commit in a place
is

    max(what was published, min(raw, just below the producer's oldest pending transaction))

A transaction is pending while it has an ACK, within the cohort, that no Slice has read, and while
one of its producers has an older pending one. Both are needed: a producer's transactions are shown
in order, and one of several producers as a whole. "Just below" is the clock before the first
document that the transaction has in that place.

What is withheld counts as uncommitted, from where the oldest of it begins, so that a restart reads
it again and nothing that is shown before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from headrace.clock import ZERO
from headrace.frontier import JOURNAL_ROW, PRODUCER_ROW, TAG_MAX, Frontier
from headrace.ids import FIRST, JournalId, Producer
from headrace.shuffle.binding import Sources
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.progress_delta import Delta
from headrace.shuffle.session.assignment import Assignment
from headrace.shuffle.session.pending_limit import PendingLimit
from headrace.shuffle.session.pending_transactions import AckStatus, PendingTransactions
from headrace.shuffle.session.producer_row import ProducerRow, Publishable, rank

Key = tuple[int, int]
"""A place and a producer."""


class CompleteFrontier:
    """Folds reports, and publishes what is complete of them."""

    folded = 0
    """Documents that were folded since the last checkpoint."""
    _kept_back_bytes = 0
    """Bytes of journals that were read since the last checkpoint."""
    _unshown = 0
    """Documents that were folded since everything folded was shown: at least those withheld."""
    _begins_unsaid = False
    """True until a checkpoint says where journals began that retention had cut."""
    _is_kept_back = False
    """True if there is progress that shows no document, and waits for some that does."""

    def __init__(
        self,
        sources: Sources,
        assignment: Assignment,
        last_commit: Frontier,
        horizon: int,
        *,
        kept_back_bytes_max: float,
        pending_max: int,
        pending_hard_max: int | None,
    ) -> None:
        """`horizon`, in clock units, is how long a hint is waited for.

        Queues keep what is rolled back until the next checkpoint. So progress through more than
        `kept_back_bytes_max` of journals is published even if it shows no document. `PendingLimit`
        says what `pending_max` and `pending_hard_max` limit.
        """
        self._kept_back_bytes_max = kept_back_bytes_max
        self._sources = sources
        self._assignment = assignment
        self._through: dict[int, int] = assignment.resume
        """How far each place is read in this Session. What was published may be ahead of it, but
        says nothing of what is withheld there."""
        self._rows: defaultdict[Key, ProducerRow] = defaultdict(ProducerRow)
        self._groups = PendingTransactions(horizon, self._cohort)
        for at, producer, commit, span in last_commit.producers.tolist():
            self._rows[at, producer].shown = commit, span
            if sources.has_place(at):
                self._groups.committed(at, producer, commit)
        self._published_through: dict[int, int] = dict(last_commit.journals.tolist())
        self._touched: set[Key] = set()
        """Rows that the next checkpoint may have."""
        self._unseen: set[Key] = set()
        """Rows that may show more than when they were last looked at."""
        self._behind: dict[int, set[Key]] = {}
        """By place, what is to be looked at when it is read as far as it was published."""
        self._touched_places: set[int] = set()
        self._withheld: dict[tuple[int, int], set[Key]] = {}
        """By cohort and producer, the rows that pending transactions hold back."""
        self._limit = PendingLimit(self._groups, pending_max, pending_hard_max)
        self.has_moved = False
        """True if a checkpoint may be due."""

    # -- journals --------------------------------------------------------------------------

    def started(self, start: ReadStart) -> None:
        """A Slice begins to read a place."""
        self._through.setdefault(start.place, start.offset)
        if start.place not in self._published_through and start.offset > FIRST:
            # A restart must know that nothing was removed but what is below.
            self._touched_places.add(start.place)
            self.has_moved = self._begins_unsaid = True

    def forget_deleted(self) -> None:
        """Forget what is in no checkpoint of the journals that are deleted."""
        self.has_moved = True
        is_gone = self._assignment.is_deleted
        for key in [key for key in self._rows if is_gone(key[0])]:
            del self._rows[key]
        self._touched = {key for key in self._touched if not is_gone(key[0])}
        self._unseen = {key for key in self._unseen if not is_gone(key[0])}
        for keys in self._withheld.values():
            keys -= {key for key in keys if is_gone(key[0])}
        self._withheld = {line: keys for line, keys in self._withheld.items() if keys}
        self._touched_places = {at for at in self._touched_places if not is_gone(at)}
        self._behind = {at: keys for at, keys in self._behind.items() if not is_gone(at)}
        self._through = {at: end for at, end in self._through.items() if not is_gone(at)}
        self._published_through = {
            at: end for at, end in self._published_through.items() if not is_gone(at)
        }
        left = {(self._cohort(at), p) for at, p in self._rows if self._sources.has_place(at)}
        self._groups.forget(is_gone, left)

    # -- progress --------------------------------------------------------------------------

    def fold(self, delta: Delta) -> None:
        """Take over a report."""
        self.has_moved = True
        self.folded += delta.documents
        self._unshown += delta.documents
        for at, through in delta.journals.tolist():
            known = max(self._through.get(at, 0), self._published_through.get(at, 0))
            self._kept_back_bytes += max(0, through - known)
            self._through[at] = max(self._through.get(at, 0), through)
            self._touched_places.add(at)
            self._groups.moved(self._assignment.journal_id(at), at & TAG_MAX)
            if at in self._behind and not self._is_behind(at):
                self._touched |= self._behind.pop(at)
        for at, producer, commit, span, since, first in delta.producers.tolist():
            key = at, producer
            self._rows[key].report(commit, span, since, first)
            self._unseen.add(key)
        self._groups.fold(delta)

    def settle(self) -> None:
        """Release the transactions that are complete; raises if too many are pending."""
        self._groups.settle(self._find, self._assignment.place_of)
        self._limit.check(self._find, self.waiting_for)

    def behind(self) -> dict[int, tuple[int, ...]]:
        """By lane, the places that go on while too many transactions are pending; others wait."""
        return self._limit.behind(self._find, self._assignment.place_of, self._lane)

    def _lane(self, at: int) -> int:
        return self._sources.of_place(at).lane

    # -- publishing ------------------------------------------------------------------------

    def show_kept_back(self) -> None:
        """A checkpoint is due if there is progress, whether or not it shows a document."""
        self.has_moved |= self._is_kept_back

    def publish(self, *, may_be_empty: bool) -> Frontier | None:
        """What has changed since the last checkpoint, if a checkpoint is due."""
        if not self.has_moved:
            return None
        self.has_moved = False
        self.settle()
        for line in self._groups.take_changed():
            self._unseen |= self._withheld.pop(line, set())
        looked_at = {key: self._publishable(key) for key in self._unseen}
        self._touched |= self._unseen
        self._unseen = set()
        shows_any = self._unshown > 0 and any(row.shows_any for row in looked_at.values())
        is_much_kept_back = self._kept_back_bytes > self._kept_back_bytes_max
        if not (shows_any or may_be_empty or self._begins_unsaid or is_much_kept_back):
            self._is_kept_back = True
            for key, row in looked_at.items():
                self._withhold(key, row.commit)
            return None
        self.folded = self._kept_back_bytes = 0
        self._begins_unsaid = self._is_kept_back = False
        rows = [(key, looked_at.get(key) or self._publishable(key)) for key in self._touched]
        producers = self._show(rows)
        shown = {at for at, *_ in producers}
        journals = []
        for at in shown | self._touched_places:
            published = self._published_through.get(at, -1)
            through = max(self._through[at], published)
            if at in shown or through > published:
                journals.append((at, through))
        self._touched_places = set()
        self._published_through |= dict(journals)
        if not journals:
            return None
        rows_of_both = np.array(journals, JOURNAL_ROW), np.array(producers, PRODUCER_ROW)
        return Frontier.from_rows(*rows_of_both)

    def _withhold(self, key: Key, commit: int) -> None:
        """Look at the row again when a transaction is complete that may hold it back."""
        if commit < self._rows[key].raw_commit:
            self._withheld.setdefault((self._cohort(key[0]), key[1]), set()).add(key)

    def _show(self, rows: list[tuple[Key, Publishable]]) -> list[tuple[int, int, int, int]]:
        """These are what checkpoints show from now on; returns what has changed."""
        producers: list[tuple[int, int, int, int]] = []
        for key, (commit, span, _) in rows:
            row = self._rows[key]
            before, row.shown = row.shown, (commit, span)
            if row.shown != before:
                # Only what moved is said, so that a replay waits for nothing else.
                moved = commit if before is None or commit > before[0] else ZERO
                producers.append((*key, moved, span))
            # Nothing else needs to be looked at again before it is reported again.
            self._withhold(key, commit)
            if self._is_behind(key[0]):
                self._behind.setdefault(key[0], set()).add(key)
        self._touched = set()
        if not self._withheld:
            self._unshown = 0
        return producers

    def _publishable(self, key: Key) -> Publishable:
        """What a checkpoint may show of the row now."""
        row = self._rows[key]
        assert row.raw is not None
        at, producer = key
        raw, span = row.raw
        before, before_span = row.shown or (ZERO, 0)
        hold = self._groups.hold(self._cohort(at), producer, at)
        commit = raw if hold is None else max(before, min(raw, hold.cap))
        shows_any = commit > before and row.shows_any(commit)
        withheld_since = row.withheld_since(commit)
        if hold is not None and commit < raw:
            span = max(withheld_since, hold.begin, self._settled(at, row))
        is_behind = self._is_behind(at)
        if rank(span) <= rank(before_span):
            # A restart reads again what was published, and is behind it for a while.
            has_closed = span < 0 <= before_span and not is_behind
            span = -self._through[at] if has_closed else before_span
        elif span < 0 and is_behind:
            # The last checkpoint had read on from here, and this Session has yet to.
            span = -span
        return Publishable(commit, span, shows_any)

    def _cohort(self, at: int) -> int:
        return self._sources.of_place(at).cohort

    def _is_behind(self, at: int) -> bool:
        """Whether the place is still being read again."""
        return self._through.get(at, 0) < self._published_through.get(at, 0)

    def _settled(self, at: int, row: ProducerRow) -> int:
        """Everything of the producer below this offset is shown or rolled back.

        A restart must never read from further back than the last checkpoint did: producers that
        had settled there are pruned from it.
        """
        is_open = row.shown is not None and row.shown[1] >= 0
        return row.shown[1] if row.shown and is_open else self._published_through.get(at, 0)

    def _find(self, journal: JournalId, binding: int, offset: int) -> AckStatus:
        """How an ACK stands that a hint names."""
        if self._assignment.is_gone(journal):
            return AckStatus.READ
        if (at := self._assignment.place_of(journal, binding)) is None:
            return AckStatus.NOWHERE
        through = self._through.get(at, -1)
        if through > offset:
            return AckStatus.READ
        return AckStatus.COMING if through < self._assignment.head(journal) else AckStatus.NOWHERE

    # -- replaying -------------------------------------------------------------------------

    def raw_commit(self, at: int, producer: int) -> int:
        """The last commit that was folded in this Session."""
        row = self._rows.get((at, producer))
        return row.raw_commit if row else ZERO

    def replayed(self, wanted: Frontier) -> None:
        """Exactly this was published again, and all of it is read again."""
        rows = wanted.producers.tolist()
        self.folded = 0
        for at, producer, commit, span in rows:
            row = self._rows[at, producer]
            before, _ = row.shown or (ZERO, 0)
            row.shown = max(before, commit), span
            row.withheld_since(row.shown[0])
        self._groups.complete({(at, producer): commit for at, producer, commit, _ in rows})
        self._published_through |= dict(wanted.journals.tolist())

    # -- status ----------------------------------------------------------------------------

    @property
    def behind_bytes(self) -> int:
        """How much journals have beyond the last checkpoint that was handed out."""
        return self._assignment.behind_bytes(self._published_through)

    def waiting_for(self) -> Iterator[tuple[Producer, str]]:
        """Producers whose transactions are pending, each with a journal that it waits for."""
        for producer, journal in self._groups.waiting(self._find):
            yield Producer(producer), self._assignment.journal_name_by_id(JournalId(journal))
