"""The Session: who reads what, which transactions are complete, what the next checkpoint is.

Slices report raw progress. What is published lags behind it: a producer's commit in a place is

    max(what was published, min(raw, just below the producer's oldest pending transaction))

A transaction is pending while it has an ACK, within the cohort, that no Slice has read, and while
one of its producers has an older pending one. Both are needed: a producer's transactions are shown
in order, and one of several producers as a whole. "Just below" is the clock before the first
document that the transaction has in that place.

What is withheld counts as uncommitted, from where the first of it begins, so that a restart reads
it again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.clock import ZERO
from headrace.errors import BehindRetentionError, NotFoundError, ProtocolError, UsageError
from headrace.frontier import (
    JOURNAL_ROW,
    PRODUCER_ROW,
    TAG_BITS,
    TAG_MAX,
    BindingTag,
    Frontier,
    JournalTag,
    place,
)
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Changes, JournalInfo
from headrace.journal.names import parse_journal_name
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.delta import Delta
from headrace.shuffle.routing import Range, assign
from headrace.shuffle.session.groups import Groups
from headrace.shuffle.session.reports import Reports
from headrace.shuffle.slice.read import Start

_PLACE = re.compile(r"\bplace (\d+)\b")

Key = tuple[int, int]
"""A place and a producer."""


@dataclass(slots=True)
class Assignments:
    """What Slices are to be told, by member."""

    tags: list[tuple[JournalId, tuple[int, ...]]] = field(default_factory=list)
    """Journals of which every Slice learns what reads them."""
    start: dict[int, list[Start]] = field(default_factory=dict)
    stop: dict[int, list[int]] = field(default_factory=dict)
    heads: dict[int, list[tuple[int, Offset]]] = field(default_factory=dict)
    last: bool = False
    """That was all: every Slice says when it has finished it."""


class SessionState:
    def __init__(
        self,
        sources: Sources,
        ranges: list[Range],
        last_commit: Checkpoint,
        read_through: Checkpoint | None,
        horizon: int,
        *,
        is_cut: bool = False,
    ) -> None:
        """`horizon`, in clock units, is how long a hint is waited for.

        Of a cut all journals are there at first, and never change.
        """
        self._sources = sources
        self._ranges = ranges
        self._last_commit = last_commit
        self._read_through = read_through
        self._refs: dict[JournalTag, JournalRef] = dict(last_commit.journals)
        if read_through:
            self._refs |= read_through.journals
        self._tags = {ref.id: tag for tag, ref in self._refs.items()}
        self._known_bindings = set(last_commit.bindings)
        self._known_tags = set(last_commit.journals)
        self._readers: dict[int, int] = {}
        """The member that reads each place."""
        self._places: dict[JournalId, list[int]] = {}
        self._infos: dict[JournalId, JournalInfo] = {}
        self._gone: set[JournalId] = set()
        self._next_tag = max(self._refs, default=-1) + 1
        self._listed = False

        frontier = last_commit.frontier
        self._resume = dict(
            zip(
                frontier.journals["place"].tolist(), frontier.resume_offsets().tolist(), strict=True
            )
        )
        self._through: dict[int, int] = dict(self._resume)
        """How far each place is read in this Session. What was published may be ahead of it, but
        says nothing of what is withheld there."""
        self._raw: dict[Key, tuple[int, int]] = {}
        self._published: dict[Key, tuple[int, int]] = {
            (at, producer): (commit, span)
            for at, producer, commit, span in frontier.producers.tolist()
        }
        self._published_through: dict[int, int] = dict(frontier.journals.tolist())
        self._held_since: dict[Key, int] = {}
        """Where the first span begins that is committed and not published."""
        self._touched: set[Key] = set()
        self._touched_places: set[int] = set()
        self._groups = Groups(horizon)
        self._reports = Reports(sources)
        self._is_cut = is_cut
        self._finished: set[int] = set()
        """Members that have read all of the cut."""
        self._deltas: deque[Delta] = deque()
        self._replays = read_through is not None
        """Until what was folded for a replay is published."""

    # -- journals --------------------------------------------------------------------------

    def journals_changed(self, changes: Changes) -> Assignments:
        """What a watch saw; at first, all journals there are."""
        self._listed = True
        told = Assignments(last=self._is_cut)
        for info in changes.created:
            self._created(info, told)
        for id in changes.deleted:
            self._deleted(id, told)
        for id, head in changes.heads.items():
            for at in self._places.get(id, ()):
                told.heads.setdefault(self._readers[at], []).append((at, head))
                self._reports.grown(at, head)
        return told

    def _created(self, info: JournalInfo, told: Assignments) -> None:
        name = parse_journal_name(info.name)
        found = self._sources.of_journal(name)
        if info.id in self._places or not found:
            return
        if (tag := self._tags.get(info.id)) is None:
            tag = self._tags[info.id] = JournalTag(self._next_tag)
            self._next_tag += 1
            self._refs[tag] = JournalRef(info.id, info.name)
        self._places[info.id] = []
        self._infos[info.id] = info
        told.tags.append((info.id, tuple(source.tag for source in found)))
        for source in found:
            at = place(tag, source.tag)
            member = assign(name, source, self._ranges)
            self._readers[at] = member
            self._places[info.id].append(at)
            start = self._start(at, source, info)
            told.start.setdefault(member, []).append(start)
            self._reports.started(start)

    def _start(self, at: int, source: Source, info: JournalInfo) -> Start:
        offset = self._resume.get(at, info.begin)
        if offset < info.begin:
            raise BehindRetentionError(
                f"{info.name}: the checkpoint of binding {source.name!r} goes on at {offset}, and"
                f" retention has removed everything below {info.begin}",
                do="keep more, or reset the task and accept the gap",
            )
        self._through.setdefault(at, offset)
        rows = self._last_commit.frontier.producers
        begin, end = np.searchsorted(rows["place"], [at, at + 1]).tolist()
        producers = tuple((p, commit) for _, p, commit, _ in rows[begin:end].tolist())
        return Start(at, info.id, info.name, source.tag, Offset(offset), info.head, producers)

    def _deleted(self, id: JournalId, told: Assignments) -> None:
        self._gone.add(id)
        self._infos.pop(id, None)
        for at in self._places.pop(id, []):
            told.stop.setdefault(self._readers.pop(at), []).append(at)
            self._reports.stopped(at)

    def journal_name(self, at: int) -> str:
        ref = self._refs.get(JournalTag(at >> TAG_BITS))
        return ref.name if ref else f"journal {at >> TAG_BITS}"

    def named(self, text: str) -> str:
        """`text` with the names of the places it mentions."""
        return _PLACE.sub(lambda found: self.place_name(int(found[1])), text)

    def place_name(self, at: int) -> str:
        source = self._sources.by_tag.get(BindingTag(at & TAG_MAX))
        binding = source.name if source else f"{at & TAG_MAX}"
        return f"journal {self.journal_name(at).removeprefix('journal ')} of binding {binding!r}"

    # -- progress --------------------------------------------------------------------------

    def progress(self, member: int, delta: Delta) -> None:
        """What a Slice reports."""
        for at in {*delta.journals["place"].tolist(), *delta.commits["place"].tolist()}:
            # One that was stopped may have been on its way.
            if self._readers.get(at, member) != member or not self._reports.knows(at):
                raise unreadable(member, f"it is about place {at}, which it does not read")
        if member in self._finished:
            raise unreadable(member, "it had finished before")
        if flaw := self._reports.flaw(delta):
            raise unreadable(member, flaw)
        self._deltas.append(delta)

    def finished(self, member: int) -> None:
        """A Slice has reported all that there is in the cut."""
        if not (self._is_cut and self._listed) or member in self._finished:
            raise ProtocolError(f"member {member} sent Finished, not asked for", do="this is a bug")
        self._finished.add(member)

    @property
    def is_over(self) -> bool:
        """Nothing will become visible any more: the cut is read to its end, and published."""
        return self._is_read_to_its_end and not self._deltas and not self._replays

    @property
    def _is_read_to_its_end(self) -> bool:
        return len(self._finished) == len(self._ranges)

    def next_checkpoint(self, documents_max: int | None = None) -> Checkpoint | None:
        """The next one, as a delta, if there is any progress; else None.

        `documents_max` is soft: whole reports are taken until it is reached.
        """
        if self._read_through is not None:
            return self._replay(self._read_through)
        taken = 0
        while self._deltas:
            taken += self._deltas[0].documents
            self._fold(self._deltas.popleft())
            if (
                documents_max is not None
                and taken >= documents_max
                and (limited := self._publish()) is not None
            ):
                return limited
        return self._publish()

    def _fold(self, delta: Delta) -> None:
        for at, through in delta.journals.tolist():
            self._through[at] = max(self._through.get(at, 0), through)
            self._touched_places.add(at)
        for at, producer, commit, span, since in delta.producers.tolist():
            key = at, producer
            self._raw[key] = commit, span
            self._touched.add(key)
            if since >= 0:
                self._held_since.setdefault(key, since)
        self._groups.fold(delta)

    # -- publishing ------------------------------------------------------------------------

    def _publish(self) -> Checkpoint | None:
        floors = self._groups.settle(self._is_read)
        producers: list[tuple[int, int, int, int]] = []
        withheld: set[Key] = set()
        for key in self._touched:
            row = self._publishable(key, floors)
            before = self._published.get(key)
            if row != before:
                self._published[key] = row
                # Only what moved is said, so that a replay waits for nothing else.
                moved = row[0] if before is None or row[0] > before[0] else ZERO
                producers.append((*key, moved, row[1]))
            if row[0] < self._raw[key][0] or self._is_behind(key[0]):
                withheld.add(key)
        # What is withheld is looked at again, whether or not its place has moved.
        self._touched = withheld
        shown = {at for at, *_ in producers}
        journals = []
        for at in shown | self._touched_places:
            published = self._published_through.get(at, -1)
            through = max(self._through[at], published)
            if at in shown or through > published:
                journals.append((at, through))
        self._touched_places = set()
        self._replays = False
        self._published_through |= dict(journals)
        return self._delta(journals, producers) if journals else None

    def _publishable(self, key: Key, floors: Mapping[tuple[int, int], int]) -> tuple[int, int]:
        at, producer = key
        raw, span = self._raw[key]
        before, before_span = self._published.get(key, (ZERO, 0))
        cohort = self._sources.by_tag[BindingTag(at & TAG_MAX)].cohort
        cap = self._groups.cap(cohort, producer, at, floors)
        commit = raw if cap is None else max(before, min(raw, cap))
        if commit == raw:
            self._held_since.pop(key, None)
        else:
            span = max(self._held_since.get(key, 0), self._settled(key))
        if _rank(span) <= _rank(before_span):
            # A restart reads again what was published, and is behind it for a while.
            return commit, before_span
        if span < 0 and self._is_behind(at):
            # The last checkpoint had read on from here, and this Session has yet to.
            span = -span
        return commit, span

    def _is_behind(self, at: int) -> bool:
        """Whether the place is still being read again."""
        return self._through.get(at, 0) < self._published_through.get(at, 0)

    def _settled(self, key: Key) -> int:
        """Everything of the producer below this offset is shown or rolled back.

        A restart must never read from further back than the last checkpoint did: producers that
        had settled there are pruned from it.
        """
        at = key[0]
        span = self._published.get(key, (ZERO, -1))[1]
        return span if span >= 0 else self._published_through.get(at, 0)

    def _delta(
        self, journals: list[tuple[int, int]], producers: list[tuple[int, int, int, int]]
    ) -> Checkpoint:
        frontier = Frontier.from_rows(
            np.array(journals, JOURNAL_ROW), np.array(producers, PRODUCER_ROW)
        )
        tags = {JournalTag(at >> TAG_BITS) for at, _ in journals} - self._known_tags
        bindings = {BindingTag(at & TAG_MAX) for at, _ in journals} - self._known_bindings
        self._known_tags |= tags
        self._known_bindings |= bindings
        return Checkpoint(
            frontier,
            {tag: self._refs[tag] for tag in tags},
            {tag: self._sources.by_tag[tag].name for tag in bindings},
        )

    def _is_read(self, journal: JournalId, binding: int, offset: int) -> bool:
        """Whether an ACK that a hint names is read, or can never be."""
        if journal in self._gone:
            return True
        tag = self._tags.get(journal)
        return tag is not None and self._through.get(place(tag, binding), -1) > offset

    # -- replaying -------------------------------------------------------------------------

    def _replay(self, wanted: Checkpoint) -> Checkpoint | None:
        """Exactly `read_through`, once everything in it is read again."""
        while self._deltas:
            self._fold(self._deltas.popleft())
        rows = wanted.frontier.producers.tolist()
        for at, producer, commit, _ in rows:
            if self._listed and at not in self._readers:
                raise NotFoundError(
                    f"{self.journal_name(at)} is not read any more, and the checkpoint that is to"
                    " be replayed has documents of it",
                    do="reset the task, and accept that the last batch is not repeated exactly",
                )
            if self._raw.get((at, producer), (0, 0))[0] < commit:
                if self._is_read_to_its_end:
                    raise UsageError(
                        f"the cut ends before the checkpoint that is to be replayed, in"
                        f" {self.journal_name(at)}",
                        do="take the cut after that checkpoint",
                    )
                return None
        self._read_through = None
        for at, producer, commit, span in rows:
            before, before_span = self._published.get((at, producer), (ZERO, 0))
            later = max(before_span, span, key=_rank)
            self._published[at, producer] = max(before, commit), later
        self._published_through |= dict(wanted.frontier.journals.tolist())
        self._known_tags |= wanted.journals.keys()
        self._known_bindings |= wanted.bindings.keys()
        return wanted

    # -- status ----------------------------------------------------------------------------

    def places(self) -> int:
        return len(self._readers)

    def waiting_for(self) -> Iterator[tuple[Producer, str]]:
        """Producers whose transactions are pending, each with a journal that it waits for."""
        names = {id: info.name for id, info in self._infos.items()}
        for producer, journal in self._groups.waiting(self._is_read):
            yield Producer(producer), names.get(JournalId(journal), f"journal {journal}")


def unreadable(member: int, why: object) -> ProtocolError:
    return ProtocolError(
        f"member {member} sent a ProgressDelta that cannot be read: {why}",
        do="run the same version of Headrace on all members",
    )


def _rank(span: int) -> int:
    """Ascends as a producer's spans follow each other: see `frontier`."""
    return abs(span) << 1 | (span >= 0)
