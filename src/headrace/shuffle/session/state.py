"""The Session: who reads what, when a poll is answered, what Slices hold back. Pure.

Events go in, and `advance` says what follows from all of them since its last call:

- A poll stays open until there is a checkpoint to answer it with, until the consumer gives it up,
  or until the cut is at its end.
- The consumer starves while its poll is open. Then Queues may exceed their soft limit. A consumer
  that does not ask has enough.
- Slices hold back what nobody asks for (see `held_lanes`), and journals that are ahead of those
  that too many transactions wait for (see `PendingLimit`). The Session tells them each change.

`CompleteFrontier` decides what a checkpoint shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from headrace.errors import REPORT, ProtocolError, UsageError
from headrace.frontier import Place
from headrace.ids import Producer
from headrace.journal.contract import Changes
from headrace.shuffle.batch.pinned_watch import check_cut_has
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.messages import Hold, Starving
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.routing import Range
from headrace.shuffle.session.assignment import Assignment
from headrace.shuffle.session.complete_frontier import CompleteFrontier
from headrace.shuffle.session.effects import AnswerPoll, Effect, SendAllSlices
from headrace.shuffle.session.pending_limit import PENDING_MAX
from headrace.shuffle.session.report_check import ReportCheck, unreadable
from headrace.shuffle.session.report_queue import ReportQueue

KEPT_ROWS_MAX = 1 << 18
_UNSETTLED_MAX = 256
"""The Session settles transactions after at most this many reports that no poll asked for."""


class _Poll(NamedTuple):
    """What a consumer asks for: see `SessionState.next_checkpoint`."""

    documents_max: int | None
    may_be_empty: bool


class SessionState:
    _replayed_rows = 0
    """How many rows of `read_through` are read again."""
    _unsettled_reports = 0
    """Reports that no poll asked for, folded since transactions were last settled."""

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
        """Resume from `last_commit`, and hand out `read_through` first if there is one.

        The journals of a cut are all there at first, and never change. While nobody asks for a
        checkpoint, the Session keeps about `kept_rows_max` rows of reports. Then it folds reports
        into one; if checkpoints are limited, it makes Slices wait instead (see `held_lanes`).
        `CompleteFrontier` says what the other limits mean.
        """
        self._is_limited = is_limited
        self._sources = sources
        self._members = len(ranges)
        self._read_through = read_through
        self.assignment = Assignment(sources, ranges, last_commit, read_through, is_cut=is_cut)
        self.frontier = CompleteFrontier(
            sources,
            self.assignment,
            last_commit.frontier,
            horizon,
            kept_back_bytes_max=kept_back_bytes_max,
            pending_max=pending_max,
            pending_hard_max=pending_hard_max,
        )
        self.frontier.has_moved = read_through is not None
        self._report_check = ReportCheck(sources, self.assignment, self.frontier.places)
        self._reports = ReportQueue(sources.lanes, kept_rows_max)
        self._is_cut = is_cut
        self._finished: set[int] = set()
        """Members that have reported all of the cut."""
        self._poll: _Poll | None = None
        """The poll that is open."""
        self.is_starving = False
        """True if Slices were told that the consumer starves."""
        self._hold = Hold(())
        """What Slices hold back, by the last message to them."""

    # -- events ----------------------------------------------------------------------------

    def journals_changed(self, changes: Changes) -> list[Effect]:
        """Take over what a watch saw: the first time, all journals there are."""
        change = self.assignment.changed(changes)
        for start in chain.from_iterable(change.start.values()):
            self.frontier.start(start)
        if change.gone:
            self.frontier.forget_deleted()
        return change.effects()

    def progress(self, member: int, delta: ProgressReport) -> None:
        """Take over what a Slice reports. Raises ProtocolError if it cannot be true."""
        delta = self._without_deleted(delta)
        for place in delta.places():
            if self.assignment.reader(place) != member:
                raise unreadable(member, f"it is about place {place}, which it does not read")
        if member in self._finished:
            raise unreadable(member, "it had finished before")
        if flaw := self._report_check.accept(delta):
            raise unreadable(member, flaw)
        lanes = {self._lane(place) for place in delta.places()}
        if len(lanes) > 1:
            raise unreadable(member, "it has places of several priorities")
        for lane in lanes:
            self._reports.put(lane, delta)
        if not self._is_limited:
            self._fold_overfull()

    def finished(self, member: int) -> None:
        """A Slice has reported the whole cut."""
        if not (self._is_cut and self.assignment.is_listed) or member in self._finished:
            raise ProtocolError(f"member {member} sent Finished, which nobody asked for", do=REPORT)
        self._finished.add(member)

    def poll(self, documents_max: int | None = None, *, may_be_empty: bool = False) -> None:
        """A consumer asks for the next checkpoint: see `next_checkpoint`."""
        if self._poll is not None:
            raise UsageError("another poll is open already", do="wait for its answer")
        self._poll = _Poll(documents_max, may_be_empty)

    def give_up(self) -> list[Effect]:
        """The consumer waits no longer. It gets a checkpoint if there is one by now."""
        effects = self.advance()
        if self._poll is not None:
            self._poll = None
            effects.append(AnswerPoll(None))
        return effects

    # -- decisions -------------------------------------------------------------------------

    def advance(self) -> list[Effect]:
        """Decide what follows from the events since the last call."""
        effects: list[Effect] = []
        if self._poll is not None:
            delta = self.next_checkpoint(
                self._poll.documents_max, may_be_empty=self._poll.may_be_empty
            )
            if delta is not None:
                effects.append(AnswerPoll(NextCheckpoint(self.assignment.last_checkpoint, delta)))
            elif self.is_over:
                effects.append(AnswerPoll(None))
            if effects:
                self._poll = None
        is_starving = self._poll is not None
        if self.is_starving != is_starving:
            self.is_starving = is_starving
            effects.append(SendAllSlices(Starving(is_starving, self.assignment.last_checkpoint)))
        if self._hold != (hold := self.hold()):
            self._hold = hold
            effects.append(SendAllSlices(hold))
        return effects

    def hold(self) -> Hold:
        """Return what Slices have to hold back now."""
        return Hold(tuple(sorted(self.held_lanes)), self.frontier.places_behind())

    @property
    def held_lanes(self) -> frozenset[int]:
        """Lanes that Slices do not read until the consumer takes checkpoints."""
        return self._reports.full_lanes if self._is_limited else frozenset()

    @property
    def is_over(self) -> bool:
        """True if the cut is read to its end and published: nothing more will be visible."""
        return self._is_read and not self._reports and not self.frontier.has_moved

    @property
    def _is_read(self) -> bool:
        """True if every member has reported all of the cut."""
        return len(self._finished) == self._members

    # -- checkpoints -----------------------------------------------------------------------

    def next_checkpoint(
        self, documents_max: int | None = None, *, may_be_empty: bool = False
    ) -> Checkpoint | None:
        """Return the next checkpoint, as a delta, if it shows a document; else None.

        Progress that shows nothing, such as a rollback, is part of the next checkpoint that shows
        a document. With `may_be_empty` it is a checkpoint by itself. The offset where a journal
        begins that retention has cut is one in any case.

        `documents_max` is soft: a checkpoint has whole reports, and at least one. Reports of a
        higher priority come first.
        """
        if self._read_through is not None:
            return self._replay(self._read_through)
        limit = math.inf if documents_max is None else max(1, documents_max)
        frontier, reports = self.frontier, self._reports
        if may_be_empty:
            frontier.show_kept_back()
        while True:
            while reports and frontier.folded_documents + reports.first_documents() <= limit:
                self._fold(reports.first_lane)
            if reports and not frontier.has_moved:
                self._fold(reports.first_lane)
            published = frontier.publish(may_be_empty=may_be_empty)
            if published is not None:
                return self.assignment.delta(published)
            if not reports:
                return None

    def _fold(self, lane: int) -> None:
        """Fold the next report of a lane."""
        delta = self._without_deleted(self._reports.take(lane))
        if self._is_cut:
            check_cut_has(delta, self.assignment.place_of, self._sources)
        self.frontier.fold(delta)

    def _fold_overfull(self) -> None:
        """Fold reports that nobody asks for, so that they do not pile up."""
        while (lane := self._reports.overfull_lane) is not None:
            self._fold(lane)
            self._unsettled_reports += 1
            if self._unsettled_reports > _UNSETTLED_MAX:
                # Complete transactions would pile up otherwise.
                self._unsettled_reports = 0
                self.frontier.settle()

    def _without_deleted(self, delta: ProgressReport) -> ProgressReport:
        """Return the report without the places of deleted journals."""
        deleted = [place for place in delta.places() if self.assignment.is_deleted(place)]
        return delta.without(deleted) if deleted else delta

    def _lane(self, place: int) -> int:
        return self._sources.of_place(place).lane

    # -- replay ----------------------------------------------------------------------------

    def _replay(self, wanted: Checkpoint) -> Checkpoint | None:
        """Return exactly `read_through`, once everything in it is read again.

        What Slices report beyond it is for the checkpoints that follow.
        """
        rows = wanted.frontier.producers.tolist()
        while not self._is_replayed(rows):
            # Other lanes wait: what is folded beyond the replay exceeds the limit of the next one.
            # But Slices take nothing of this lane while an earlier one is held.
            needed = self._lane(rows[self._replayed_rows][0]) if self._reports else 0
            lane = needed if self._reports.has(needed) else min(self.held_lanes, default=None)
            if lane is None:
                return None
            self._fold(lane)
        for place, *_ in rows:
            self.assignment.check_is_read(place)
        self._read_through = None
        self.frontier.replay(wanted.frontier)
        self.assignment.published(wanted)
        return wanted

    def _is_replayed(self, rows: list[tuple[Place, int, int, int]]) -> bool:
        """Return True if all rows are read again. It looks at no row twice that is."""
        while self._replayed_rows < len(rows):
            place, producer, commit, _ = rows[self._replayed_rows]
            self.assignment.check_is_read(place)
            if self.frontier.raw_commit(place, producer) < commit:
                if self._is_read and not self._reports.has(self._lane(place)):
                    raise UsageError(
                        f"the cut ends before the checkpoint that is to be replayed, in"
                        f" {self.assignment.journal_name(place)}",
                        do="take the cut after that checkpoint",
                    )
                return False
            self._replayed_rows += 1
        return True

    # -- status ----------------------------------------------------------------------------

    @property
    def behind_bytes(self) -> int:
        """Bytes that journals have beyond the last checkpoint, once for each binding."""
        return self.frontier.behind_bytes

    def waiting_for(self) -> Iterator[tuple[Producer, str]]:
        """Yield producers with pending transactions, each with a journal that it waits for."""
        return self.frontier.waiting_for()

    def validate(self) -> None:
        """Assert the invariants that hold once `advance` has decided."""
        self.assignment.validate()
        self.frontier.validate()
        self._reports.validate(self._lane)
        assert self.is_starving == (self._poll is not None), "is_starving contradicts the poll"
        assert self._hold == self.hold(), "Slices were not sent what to hold back"
        assert self._finished <= set(range(self._members)), "a member finished that does not exist"
        assert self._is_cut or not self._finished, "a member finished without a cut"
