"""The Session: who reads what, when a poll is answered, what Slices hold back.

Events go in, and `advance` says what follows from all of them since it was last called:

- A poll stays open until there is a checkpoint to answer it with, until it is given up, or until
  the cut is at its end.
- The consumer starves while a poll is open. It tells Queues that reads may exceed the soft limit:
  whoever does not ask has enough.
- Slices hold back what nobody asks for (see `held_lanes`), and journals that are ahead of those
  that too many transactions wait for (see `PendingLimit`). They are told when that changes.

`CompleteFrontier` decides what a checkpoint shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from headrace.errors import REPORT, ProtocolError, UsageError
from headrace.ids import Producer
from headrace.journal.contract import Changes
from headrace.shuffle.batch.pinned_watch import check_cut_has
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.messages import Hold, Starving
from headrace.shuffle.progress_delta import Delta
from headrace.shuffle.routing import Range
from headrace.shuffle.session.assignment import Assignment
from headrace.shuffle.session.complete_frontier import CompleteFrontier
from headrace.shuffle.session.effects import AnswerPoll, Effect, SendAllSlices
from headrace.shuffle.session.pending_limit import PENDING_MAX
from headrace.shuffle.session.report_queue import ReportQueue
from headrace.shuffle.session.reports import Reports, unreadable

KEPT_ROWS_MAX = 1 << 18
_UNSETTLED_MAX = 256


class _Poll(NamedTuple):
    """What a consumer asks for: see `SessionState.next_checkpoint`."""

    documents_max: int | None
    may_be_empty: bool


class SessionState:
    _replayed = 0
    """How many rows of `read_through` are read again."""
    _unsettled = 0
    """How many reports were folded unasked since transactions were last looked at."""

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

        `CompleteFrontier` says what the other limits are.
        """
        self._is_limited = is_limited
        self._sources = sources
        self._members = len(ranges)
        self._read_through = read_through
        self.assignment = Assignment(sources, ranges, last_commit, read_through, is_cut=is_cut)
        self._frontier = CompleteFrontier(
            sources,
            self.assignment,
            last_commit.frontier,
            horizon,
            kept_back_bytes_max=kept_back_bytes_max,
            pending_max=pending_max,
            pending_hard_max=pending_hard_max,
        )
        self._frontier.has_moved = read_through is not None
        self._reports = Reports(sources)
        self._is_cut = is_cut
        self._finished: set[int] = set()
        """Members that have read all of the cut."""
        self._queue = ReportQueue(sources.lanes, kept_rows_max)
        self._poll: _Poll | None = None
        self.is_starving = False
        """True if Slices are told that the consumer starves."""
        self._hold = Hold(())
        """What Slices are told to hold back."""

    # -- journals --------------------------------------------------------------------------

    def journals_changed(self, changes: Changes) -> list[Effect]:
        """What a watch saw; at first, all journals there are."""
        change = self.assignment.changed(changes)
        for start in chain.from_iterable(change.start.values()):
            self._reports.started(start)
            self._frontier.started(start)
        if change.gone:
            self._frontier.forget_deleted()
            self._reports.forget(self.assignment.is_deleted)
        for at, head in chain.from_iterable(change.heads.values()):
            self._reports.grown(at, head)
        return change.effects()

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
                self._frontier.settle()

    def _lane(self, at: int) -> int:
        return self._sources.of_place(at).lane

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
        return self._is_read_to_its_end and not self._queue and not self._frontier.has_moved

    @property
    def _is_read_to_its_end(self) -> bool:
        return len(self._finished) == self._members

    # -- decisions -------------------------------------------------------------------------

    def poll(self, documents_max: int | None = None, *, may_be_empty: bool = False) -> None:
        """A consumer asks for the next checkpoint: see `next_checkpoint`."""
        if self._poll is not None:
            raise UsageError("a checkpoint is asked for already", do="wait for it")
        self._poll = _Poll(documents_max, may_be_empty)

    def give_up(self) -> list[Effect]:
        """The consumer waits no longer: it gets a checkpoint if there is one by now."""
        effects = self.advance()
        if self._poll is not None:
            self._poll = None
            effects.append(AnswerPoll(None))
        return effects

    def advance(self) -> list[Effect]:
        """Decide what follows from the events since the last call."""
        effects: list[Effect] = []
        if self._poll is not None:
            delta = self.next_checkpoint(
                self._poll.documents_max, may_be_empty=self._poll.may_be_empty
            )
            if delta is not None or self.is_over:
                self._poll = None
                number = self.assignment.made
                effects.append(AnswerPoll(None if delta is None else NextCheckpoint(number, delta)))
        if self.is_starving != (self._poll is not None):
            self.is_starving = self._poll is not None
            effects.append(SendAllSlices(Starving(self.is_starving, self.assignment.made)))
        if self._hold != (hold := self.hold()):
            self._hold = hold
            effects.append(SendAllSlices(hold))
        return effects

    def hold(self) -> Hold:
        """What Slices are to hold back now."""
        return Hold(tuple(sorted(self.held_lanes)), self._frontier.behind())

    # -- checkpoints -----------------------------------------------------------------------

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
        frontier = self._frontier
        if may_be_empty:
            frontier.show_kept_back()
        while True:
            while self._queue and frontier.folded + self._queue.first_documents() <= limit:
                self._fold_first()
            if self._queue and not frontier.has_moved:
                self._fold_first()
            published = frontier.publish(may_be_empty=may_be_empty)
            if published is not None:
                return self.assignment.delta(published)
            if not self._queue:
                return None

    def _fold_first(self) -> None:
        lane = self._queue.first_lane
        assert lane is not None
        self._fold(lane)

    def _fold(self, lane: int) -> None:
        """Take over the next report of a lane."""
        delta = self._still_read(self._queue.take(lane))
        if self._is_cut:
            check_cut_has(delta, self.assignment.place_of, self._sources)
        self._frontier.fold(delta)

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
        self._frontier.replayed(wanted.frontier)
        self.assignment.handed_out(wanted)
        return wanted

    def _is_replayed(self, rows: list[tuple[int, int, int, int]]) -> bool:
        """Whether so much is read again; rows that are need not be looked at twice."""
        while self._replayed < len(rows):
            at, producer, commit, _ = rows[self._replayed]
            self.assignment.check_is_read(at)
            if self._frontier.raw_commit(at, producer) < commit:
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
        return self._frontier.behind_bytes

    def waiting_for(self) -> Iterator[tuple[Producer, str]]:
        """Producers whose transactions are pending, each with a journal that it waits for."""
        return self._frontier.waiting_for()
