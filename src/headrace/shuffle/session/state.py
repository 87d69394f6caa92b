"""The Session: who reads what, which transactions are complete, what the next checkpoint is.

Slices report raw progress. What is published lags behind it: a producer's commit in a place is

    max(what was published, min(raw, just below the producer's oldest pending transaction))

A transaction is pending while it has an ACK, within the cohort, that no Slice has read, and while
one of its producers has an older pending one. Both are needed: a producer's transactions are shown
in order, and one of several producers as a whole. "Just below" is the clock before the first
document that the transaction has in that place.

What is withheld counts as uncommitted, from where the oldest of it begins, so that a restart reads
it again and nothing that is shown before it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np

from headrace.clock import ZERO
from headrace.errors import REPORT, ProtocolError, UsageError
from headrace.frontier import JOURNAL_ROW, PRODUCER_ROW, TAG_MAX, Frontier
from headrace.ids import FIRST, JournalId, Producer
from headrace.journal.contract import Changes
from headrace.shuffle.batch.pinned_watch import check_cut_has
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.progress_delta import Delta
from headrace.shuffle.routing import Range
from headrace.shuffle.session.assignment import Assignment, AssignmentChange
from headrace.shuffle.session.pending_limit import PENDING_MAX, Hold, PendingLimit
from headrace.shuffle.session.pending_transactions import AckStatus, PendingTransactions
from headrace.shuffle.session.producer_row import ProducerRow, Publishable, rank
from headrace.shuffle.session.report_queue import ReportQueue
from headrace.shuffle.session.reports import Reports, unreadable

KEPT_ROWS_MAX = 1 << 18
_UNSETTLED_MAX = 256

Key = tuple[int, int]
"""A place and a producer."""


class SessionState:
    _replayed = 0
    """How many rows of `read_through` are read again."""
    _unsettled = 0
    """How many reports were folded unasked since transactions were last looked at."""
    _folded = 0
    """Documents that were folded since the last checkpoint."""
    _kept_back_bytes = 0
    """How much was read since the last checkpoint."""
    _unshown = 0
    """Documents that were folded since everything folded was shown: at least those withheld."""
    _begins_unsaid = False
    """True until a checkpoint says where journals began that retention had cut."""
    _is_kept_back = False
    """True if there is progress that shows no document, and waits for some that does."""

    def __init__(
        self,
        sources: Sources,
        ranges: list[Range],
        last_commit: Checkpoint,
        read_through: Checkpoint | None,
        horizon: int,
        *,
        is_cut: bool = False,
        is_limited: bool = False,
        kept_rows_max: int = KEPT_ROWS_MAX,
        kept_back_bytes_max: float = math.inf,
        pending_max: int = PENDING_MAX,
        pending_hard_max: int | None = None,
    ) -> None:
        """`horizon`, in clock units, is how long a hint is waited for.

        Of a cut all journals are there at first, and never change. While nobody asks for a
        checkpoint, at most about `kept_rows_max` are kept of what Slices report: if checkpoints
        are limited, Slices wait then (see `held_lanes`); else reports are folded into one.

        Queues keep what is rolled back until the next checkpoint: progress through more than
        `kept_back_bytes_max` of journals is one, whether or not it shows any document.
        `PendingLimit` says what `pending_max` and `pending_hard_max` limit.
        """
        self._is_limited = is_limited
        self._kept_back_bytes_max = kept_back_bytes_max
        self._sources = sources
        self._members = len(ranges)
        self._read_through = read_through
        self.assignment = Assignment(sources, ranges, last_commit, read_through, is_cut=is_cut)
        frontier = last_commit.frontier
        self._through: dict[int, int] = self.assignment.resume
        """How far each place is read in this Session. What was published may be ahead of it, but
        says nothing of what is withheld there."""
        self._rows: defaultdict[Key, ProducerRow] = defaultdict(ProducerRow)
        self._groups = PendingTransactions(horizon, self._cohort)
        for at, producer, commit, span in frontier.producers.tolist():
            self._rows[at, producer].shown = commit, span
            if sources.has_place(at):
                self._groups.committed(at, producer, commit)
        self._published_through: dict[int, int] = dict(frontier.journals.tolist())
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
        self._reports = Reports(sources)
        self._is_cut = is_cut
        self._finished: set[int] = set()
        """Members that have read all of the cut."""
        self._queue = ReportQueue(sources.lanes, kept_rows_max)
        self._has_moved = read_through is not None
        """True if a checkpoint may be due."""

    # -- journals --------------------------------------------------------------------------

    def journals_changed(self, changes: Changes) -> AssignmentChange:
        """What a watch saw; at first, all journals there are."""
        told = self.assignment.changed(changes)
        for start in chain.from_iterable(told.start.values()):
            self._reports.started(start)
            self._through.setdefault(start.place, start.offset)
            if start.place not in self._published_through and start.offset > FIRST:
                # A restart must know that nothing was removed but what is below.
                self._touched_places.add(start.place)
                self._has_moved = self._begins_unsaid = True
        if told.gone:
            self._forget_the_deleted()
            self._has_moved = True
        for at, head in chain.from_iterable(told.heads.values()):
            self._reports.grown(at, head)
        return told

    def _forget_the_deleted(self) -> None:
        """What is in no checkpoint is gone with its journal."""
        is_gone = self.assignment.is_deleted
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
        self._reports.forget(is_gone)

    # -- progress --------------------------------------------------------------------------

    def progress(self, member: int, delta: Delta) -> None:
        """What a Slice reports."""
        delta = self._still_read(delta)
        for at in delta.places():
            if self.assignment.reader(at) != member:
                raise unreadable(member, f"it is about place {at}, which it does not read")
        if member in self._finished:
            raise unreadable(member, "it had finished before")
        if flaw := self._reports.flaw(delta):
            raise unreadable(member, flaw)
        lanes = {self._lane(at) for at in delta.places()}
        if len(lanes) > 1:
            raise unreadable(member, "it has places of several priorities")
        for its_lane in lanes:
            self._queue.put(its_lane, delta)
        while not self._is_limited and (lane := self._queue.overfull_lane) is not None:
            self._fold(lane)
            self._unsettled += 1
            if self._unsettled > _UNSETTLED_MAX:
                # Else what is complete would pile up while nobody asks.
                self._unsettled = 0
                self._settle()

    def hold(self) -> Hold:
        """What Slices do not take for now; after anything happened."""
        find, place_of = self._find, self.assignment.place_of
        return Hold(self.held_lanes, self._limit.behind(find, place_of, self._lane))

    def _lane(self, at: int) -> int:
        return self._sources.of_place(at).lane

    def _settle(self) -> None:
        self._groups.settle(self._find, self.assignment.place_of)
        self._limit.check(self._find, self.waiting_for)

    @property
    def held_lanes(self) -> frozenset[int]:
        """Lanes of which Slices take no more until somebody asks for checkpoints."""
        return self._queue.full_lanes if self._is_limited else frozenset()

    def _still_read(self, delta: Delta) -> Delta:
        stopped = [at for at in delta.places() if self.assignment.is_deleted(at)]
        return delta.without(stopped) if stopped else delta

    def finished(self, member: int) -> None:
        """A Slice has reported the whole cut."""
        if not (self._is_cut and self.assignment.is_listed) or member in self._finished:
            raise ProtocolError(f"member {member} sent Finished, not asked for", do=REPORT)
        self._finished.add(member)

    @property
    def is_over(self) -> bool:
        """Nothing will become visible any more: the cut is read to its end, and published."""
        return self._is_read_to_its_end and not self._queue and not self._has_moved

    @property
    def _is_read_to_its_end(self) -> bool:
        return len(self._finished) == self._members

    def next_checkpoint(
        self, documents_max: int | None = None, *, may_be_empty: bool = False
    ) -> Checkpoint | None:
        """The next one, as a delta, if it shows any document; else None.

        Progress that shows nothing, such as a rollback, is part of the next checkpoint that does;
        with `may_be_empty` it is one by itself. So is where journals begin that retention has cut.

        `documents_max` is soft: a checkpoint has whole reports, and at least one of them. Reports
        of a higher priority come first.
        """
        if self._read_through is not None:
            return self._replay(self._read_through)
        limit = math.inf if documents_max is None else max(1, documents_max)
        if may_be_empty:
            self._has_moved |= self._is_kept_back
        while True:
            while self._queue and self._folded + self._queue.first_documents() <= limit:
                self._fold_first()
            if self._queue and not self._has_moved:
                self._fold_first()
            if not self._has_moved:
                return None
            delta = self._publish(may_be_empty=may_be_empty)
            if delta is not None or not self._queue:
                return delta

    def _fold_first(self) -> None:
        lane = self._queue.first_lane
        assert lane is not None
        self._fold(lane)

    def _fold(self, lane: int) -> None:
        """Take over the next report of a lane."""
        delta = self._queue.take(lane)
        delta = self._still_read(delta)
        self._has_moved = True
        self._folded += delta.documents
        self._unshown += delta.documents
        for at, through in delta.journals.tolist():
            known = max(self._through.get(at, 0), self._published_through.get(at, 0))
            self._kept_back_bytes += max(0, through - known)
            self._through[at] = max(self._through.get(at, 0), through)
            self._touched_places.add(at)
            self._groups.moved(self.assignment.journal_id(at), at & TAG_MAX)
            if at in self._behind and not self._is_behind(at):
                self._touched |= self._behind.pop(at)
        for at, producer, commit, span, since, first in delta.producers.tolist():
            key = at, producer
            self._rows[key].report(commit, span, since, first)
            self._unseen.add(key)
        if self._is_cut:
            check_cut_has(delta, self.assignment.place_of, self._sources)
        self._groups.fold(delta)

    # -- publishing ------------------------------------------------------------------------

    def _publish(self, *, may_be_empty: bool) -> Checkpoint | None:
        self._has_moved = False
        self._settle()
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
        self._folded = self._kept_back_bytes = 0
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
        return self.assignment.delta(Frontier.from_rows(*rows_of_both))

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
        if self.assignment.is_gone(journal):
            return AckStatus.READ
        if (at := self.assignment.place_of(journal, binding)) is None:
            return AckStatus.NOWHERE
        through = self._through.get(at, -1)
        if through > offset:
            return AckStatus.READ
        return AckStatus.COMING if through < self.assignment.head(journal) else AckStatus.NOWHERE

    # -- replaying -------------------------------------------------------------------------

    def _replay(self, wanted: Checkpoint) -> Checkpoint | None:
        """Exactly `read_through`, once everything in it is read again.

        What is reported beyond it is for the checkpoints that follow.
        """
        rows = wanted.frontier.producers.tolist()
        while not self._is_replayed(rows):
            # Other lanes wait: what is folded beyond the replay exceeds the limit of the next one.
            # But Slices take nothing of this lane while an earlier one is held.
            needed = self._lane(rows[self._replayed][0]) if self._queue else 0
            lane = needed if self._queue.has(needed) else min(self.held_lanes, default=None)
            if lane is None:
                return None
            self._fold(lane)
        for at, *_ in rows:
            self.assignment.check_is_read(at)
        self._read_through = None
        self._folded = 0
        for at, producer, commit, span in rows:
            row = self._rows[at, producer]
            before, _ = row.shown or (ZERO, 0)
            row.shown = max(before, commit), span
            row.withheld_since(row.shown[0])
        self._groups.complete({(at, producer): commit for at, producer, commit, _ in rows})
        self._published_through |= dict(wanted.frontier.journals.tolist())
        self.assignment.handed_out(wanted)
        return wanted

    def _is_replayed(self, rows: list[tuple[int, int, int, int]]) -> bool:
        """Whether so much is read again; rows that are need not be looked at twice."""
        while self._replayed < len(rows):
            at, producer, commit, _ = rows[self._replayed]
            self.assignment.check_is_read(at)
            row = self._rows.get((at, producer))
            if (row.raw_commit if row else ZERO) < commit:
                if self._is_read_to_its_end and not self._queue:
                    raise UsageError(
                        f"the cut ends before the checkpoint that is to be replayed, in"
                        f" {self.assignment.journal_name(at)}",
                        do="take the cut after that checkpoint",
                    )
                return False
            self._replayed += 1
        return True

    # -- status ----------------------------------------------------------------------------

    @property
    def behind_bytes(self) -> int:
        """How much journals have beyond the last checkpoint that was handed out."""
        return self.assignment.behind_bytes(self._published_through)

    def waiting_for(self) -> Iterator[tuple[Producer, str]]:
        """Producers whose transactions are pending, each with a journal that it waits for."""
        for producer, journal in self._groups.waiting(self._find):
            yield Producer(producer), self.assignment.journal_name_by_id(JournalId(journal))
