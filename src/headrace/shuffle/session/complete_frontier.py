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

from collections.abc import Iterator

import numpy as np

from headrace.frontier import JOURNAL_ROW, PRODUCER_ROW, Frontier, Place, binding_tag
from headrace.ids import FIRST, JournalId, Producer
from headrace.shuffle.binding import Sources
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.session.assignment import Assignment
from headrace.shuffle.session.pending_limit import PendingLimit
from headrace.shuffle.session.pending_transactions import AckStatus, LineId, PendingTransactions
from headrace.shuffle.session.producer_row import PlaceRow, ProducerRow, Publishable


class CompleteFrontier:
    """Folds reports, and publishes what is complete of them.

    Publishing costs what changed: rows that may show more than before are collected when they
    change, and no other row is looked at.
    """

    folded_documents = 0
    """Documents that were folded since the last checkpoint."""
    _kept_back_bytes = 0
    """Bytes of journals that were read since the last checkpoint."""
    _unshown_documents = 0
    """Documents that were folded since the last time that everything folded was shown."""
    _has_new_begins = False
    """True until a checkpoint says where journals begin that retention has cut."""
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
        """`horizon`, in clock units, is how long a transaction waits for an ACK.

        Queues keep what is rolled back until the next checkpoint. So progress through more than
        `kept_back_bytes_max` of journals is published even if it shows no document. `PendingLimit`
        says what `pending_max` and `pending_hard_max` limit.
        """
        self._kept_back_bytes_max = kept_back_bytes_max
        self._sources = sources
        self._assignment = assignment
        self.places: dict[Place, PlaceRow] = {
            place: PlaceRow(place, through) for place, through in last_commit.journals.tolist()
        }
        self.pending = PendingTransactions(horizon, self._cohort)
        for place, producer, commit, span in last_commit.producers.tolist():
            self.places[place].producer(producer).restore(commit, span)
            if sources.has_place(place):
                self.pending.committed(place, producer, commit)
        self._limit = PendingLimit(self.pending, pending_max, pending_hard_max)
        self._unseen: set[ProducerRow] = set()
        """Rows that may show more than when they were last looked at."""
        self._touched: set[ProducerRow] = set()
        """Rows that were looked at and that no checkpoint has as they are now."""
        self._touched_places: set[PlaceRow] = set()
        """Places that were read further since the last checkpoint."""
        self._withheld: dict[LineId, set[ProducerRow]] = {}
        """By cohort and producer, the rows that pending transactions hold back."""
        self.has_moved = False
        """True if a checkpoint may be due."""

    # -- journals --------------------------------------------------------------------------

    def start(self, start: ReadStart) -> None:
        """A Slice begins to read a place."""
        row = self._place_row(Place(start.place))
        row.start(start.offset)
        if not row.is_published and start.offset > FIRST:
            # A restart must know that retention removed only what is below.
            self._touched_places.add(row)
            self.has_moved = self._has_new_begins = True

    def forget_deleted(self) -> None:
        """Forget everything about the places of deleted journals."""
        self.has_moved = True
        is_deleted = self._assignment.is_deleted
        for place in [place for place in self.places if is_deleted(place)]:
            row = self.places.pop(place)
            self._touched_places.discard(row)
            self._unseen.difference_update(row.producers.values())
            self._touched.difference_update(row.producers.values())
            for producer_row in row.producers.values():
                self._stop_withholding(producer_row)
        left = {
            (self._cohort(place), producer)
            for place, row in self.places.items()
            if self._sources.has_place(place)
            for producer in row.producers
        }
        self.pending.forget(is_deleted, left)

    # -- progress --------------------------------------------------------------------------

    def fold(self, delta: ProgressReport) -> None:
        """Take over a report."""
        self.has_moved = True
        self.folded_documents += delta.documents
        self._unshown_documents += delta.documents
        for place, through in delta.journals.tolist():
            row = self.places[place]
            known = max(row.through, row.published_through)
            self._kept_back_bytes += max(0, through - known)
            row.through = max(row.through, through)
            self._touched_places.add(row)
            self.pending.moved(self._assignment.journal_id(place), binding_tag(place))
            if row.waiting_rows and not row.is_behind:
                self._touched |= row.waiting_rows
                row.waiting_rows = set()
        for place, producer, commit, span, since, first in delta.producers.tolist():
            producer_row = self.places[place].producer(producer)
            producer_row.fold(commit, span, since, first)
            self._unseen.add(producer_row)
        self.pending.fold(delta)

    def settle(self) -> None:
        """Release the transactions that are complete. Raises if too many are pending."""
        self.pending.settle(self._find, self._assignment.place_of)
        self._limit.check(self._find, self.waiting_for)

    def places_behind(self) -> dict[int, tuple[int, ...]]:
        """Return, by lane, the places that go on while too many transactions are pending."""
        return self._limit.behind(self._find, self._assignment.place_of, self._lane)

    def _lane(self, place: int) -> int:
        return self._sources.of_place(place).lane

    def _cohort(self, place: int) -> int:
        return self._sources.of_place(place).cohort

    def _find(self, journal: JournalId, binding: int, offset: int) -> AckStatus:
        """Return where the ACK is that a hint names."""
        if self._assignment.is_gone(journal):
            return AckStatus.READ
        if (place := self._assignment.place_of(journal, binding)) is None:
            return AckStatus.NOWHERE
        through = self.places[place].through
        if through > offset:
            return AckStatus.READ
        return AckStatus.COMING if through < self._assignment.head(journal) else AckStatus.NOWHERE

    # -- publishing ------------------------------------------------------------------------

    def show_kept_back(self) -> None:
        """Make a checkpoint due if there is progress, whether or not it shows a document."""
        self.has_moved |= self._is_kept_back

    def publish(self, *, may_be_empty: bool) -> Frontier | None:
        """Return what has changed since the last checkpoint, if a checkpoint is due."""
        if not self.has_moved:
            return None
        self.has_moved = False
        self.settle()
        for line in self.pending.take_changed():
            self._unseen |= self._withheld.pop(line, set())
        looked_at = {row: self._publishable(row) for row in self._unseen}
        self._touched |= self._unseen
        self._unseen = set()
        shows_any = self._unshown_documents > 0 and any(
            publishable.shows_any for publishable in looked_at.values()
        )
        is_much_kept_back = self._kept_back_bytes > self._kept_back_bytes_max
        if not (shows_any or may_be_empty or self._has_new_begins or is_much_kept_back):
            self._is_kept_back = True
            for row, publishable in looked_at.items():
                self._withhold(row, publishable.progress.commit)
            return None
        self.folded_documents = self._kept_back_bytes = 0
        self._has_new_begins = self._is_kept_back = False
        producers = self._show(
            {row: looked_at.get(row) or self._publishable(row) for row in self._touched}
        )
        journals = self._show_places({self.places[place] for place, *_ in producers})
        if not journals:
            return None
        return Frontier.from_rows(
            np.array(journals, JOURNAL_ROW), np.array(producers, PRODUCER_ROW)
        )

    def _publishable(self, row: ProducerRow) -> Publishable:
        place = row.place.place
        return row.publishable(self.pending.cap(self._cohort(place), row.producer, place))

    def _show(
        self, publishable: dict[ProducerRow, Publishable]
    ) -> list[tuple[Place, int, int, int]]:
        """Have checkpoints show this from now on; return the rows that have changed."""
        producers: list[tuple[Place, int, int, int]] = []
        for row, (progress, _) in publishable.items():
            before, row.shown = row.shown, progress
            commit, span = progress
            if progress != before:
                # A replay waits for every commit in its checkpoint, so only new ones are in it.
                moved = commit if before is None or commit > before.commit else 0
                producers.append((row.place.place, row.producer, moved, span.encode()))
            # Nothing else needs to be looked at again before it is reported again.
            self._withhold(row, commit)
            if row.place.is_behind:
                row.place.waiting_rows.add(row)
        self._touched = set()
        if not self._withheld:
            self._unshown_documents = 0
        return producers

    def _show_places(self, shown: set[PlaceRow]) -> list[tuple[Place, int]]:
        """Publish how far places are read: those of `shown`, and those that were read further."""
        journals: list[tuple[Place, int]] = []
        for row in shown | self._touched_places:
            through = max(row.through, row.published_through)
            if row in shown or through > row.published_through:
                journals.append((row.place, through))
                row.published_through = through
        self._touched_places = set()
        return journals

    def _line(self, row: ProducerRow) -> LineId:
        return self._cohort(row.place.place), row.producer

    def _withhold(self, row: ProducerRow, commit: int) -> None:
        """Look at the row again when a transaction is complete that may hold it back."""
        if commit < row.raw_commit:
            self._withheld.setdefault(self._line(row), set()).add(row)

    def _stop_withholding(self, row: ProducerRow) -> None:
        if not self._sources.has_place(row.place.place):
            return
        line = self._line(row)
        if (rows := self._withheld.get(line)) is not None:
            rows.discard(row)
            if not rows:
                del self._withheld[line]

    # -- replaying -------------------------------------------------------------------------

    def raw_commit(self, place: Place, producer: int) -> int:
        """Return the last commit that was folded in this Session."""
        found = self.places.get(place)
        row = found.producers.get(producer) if found else None
        return row.raw_commit if row else 0

    def replay(self, wanted: Frontier) -> None:
        """Publish exactly this again. Slices have read all of it again."""
        self.folded_documents = 0
        commits: dict[tuple[int, int], int] = {}
        for place, producer, commit, span in wanted.producers.tolist():
            # Rows without a commit wait for nothing: their places may not be started yet.
            self._place_row(place).producer(producer).replay(commit, span)
            commits[place, producer] = commit
        self.pending.forget_shown(commits)
        for place, through in wanted.journals.tolist():
            self._place_row(place).published_through = through

    def _place_row(self, place: Place) -> PlaceRow:
        """Return the row of a place, which is made if there is none."""
        if (row := self.places.get(place)) is None:
            row = self.places[place] = PlaceRow(place)
        return row

    # -- status ----------------------------------------------------------------------------

    @property
    def behind_bytes(self) -> int:
        """Bytes that journals have beyond the last checkpoint, once for each binding."""
        return sum(
            max(0, journal.head - max(journal.begin, self.places[place].published_through))
            for journal in self._assignment.journals
            for place in journal.places
        )

    def waiting_for(self) -> Iterator[tuple[Producer, str]]:
        """Yield producers with pending transactions, each with a journal that it waits for."""
        for producer, journal in self.pending.waiting(self._find):
            yield Producer(producer), self._assignment.journal_name_by_id(journal)

    def validate(self) -> None:
        """Assert what holds between events."""
        for place, place_row in self.places.items():
            assert place == place_row.place, f"place {place} has the row of {place_row.place}"
            assert not self._assignment.is_deleted(place), f"place {place} is deleted"
            place_row.validate(self._assignment.head_of(place))
        withheld = {row for rows in self._withheld.values() for row in rows}
        for row in self._unseen | self._touched | withheld:
            assert self.places.get(row.place.place) is row.place, "a forgotten row is kept"
        for place_row in self._touched_places:
            assert self.places.get(place_row.place) is place_row, "a forgotten place is kept"
        for line, rows in self._withheld.items():
            assert rows, "a line withholds nothing"
            assert all(self._line(row) == line for row in rows), "a row is withheld elsewhere"
        self._validate_commits(self._unseen | self._touched)
        self.pending.validate()

    def _validate_commits(self, changed: set[ProducerRow]) -> None:
        """Assert that no row shows less than it may, unless it is about to be looked at."""
        lines = self.pending.changed_lines
        for place, place_row in self.places.items():
            for row in place_row.producers.values():
                if row.raw is None or row in changed or self._line(row) in lines:
                    continue
                cap = self.pending.cap(self._cohort(place), row.producer, place)
                allowed = row.raw.commit if cap is None else min(row.raw.commit, cap.commit)
                name = f"place {place}, producer {row.producer}"
                assert row.shown_commit >= allowed, f"{name} is forgotten at {row.shown_commit}"
                if row.shown_commit < row.raw.commit:
                    held = self._withheld.get(self._line(row), set())
                    assert row in held, f"{name} waits for no transaction"
