"""Which journals a Session reads, where it begins in each, and which member reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from headrace.errors import BehindRetentionError, NotFoundError, UsageError
from headrace.frontier import (
    TAG_BITS,
    TAG_MAX,
    BindingTag,
    Frontier,
    JournalTag,
    Place,
    binding_tag,
    journal_tag,
    place,
)
from headrace.ids import FIRST, JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.journal.names import parse_journal_name
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.messages import Heads, ReadStart, StartRead, StopRead, Tags
from headrace.shuffle.routing import Range, assign
from headrace.shuffle.session.effects import Effect, SendAllSlices, SendSlice

_PLACE = re.compile(r"\bplace (\d+)\b")


@dataclass(slots=True)
class AssignmentChange:
    """What changed in who reads what. The keys are numbers of members."""

    tags: list[tuple[JournalId, tuple[int, ...]]] = field(default_factory=list)
    """New journals, each with the bindings that read it."""
    start: dict[int, list[ReadStart]] = field(default_factory=dict)
    """The first change has every member, even if it reads nothing."""
    stop: dict[int, list[int]] = field(default_factory=dict)
    gone: set[JournalTag] = field(default_factory=set)
    """Tags of journals that were deleted."""
    heads: dict[int, list[tuple[int, Offset]]] = field(default_factory=dict)
    checkpoint: int = 0
    """The last checkpoint that may show anything of the places in `stop`."""
    is_cut: bool = False
    """True if nothing else will change."""

    def effects(self) -> list[Effect]:
        """Return the messages to Slices. They learn of a journal before anybody reads it."""
        effects: list[Effect] = []
        if self.tags:
            effects.append(SendAllSlices(Tags(self.tags)))  # type: ignore[arg-type]
        for member, starts in self.start.items():
            effects.append(SendSlice(member, StartRead(starts, self.is_cut)))
        for member, places in self.stop.items():
            effects.append(SendSlice(member, StopRead(places, self.checkpoint)))
        for member, heads in self.heads.items():
            effects.append(SendSlice(member, Heads(heads)))
        return effects


@dataclass(slots=True)
class ReadJournal:
    """A journal that the Session reads."""

    begin: Offset
    head: Offset
    places: list[Place] = field(default_factory=list)


class Assignment:
    def __init__(
        self,
        sources: Sources,
        ranges: list[Range],
        last_commit: Checkpoint,
        read_through: Checkpoint | None,
        *,
        is_cut: bool,
    ) -> None:
        self._sources = sources
        self._ranges = ranges
        self._last_commit = last_commit
        self._is_cut = is_cut
        replayed = read_through or Checkpoint()
        self._refs: dict[JournalTag, JournalRef] = {**last_commit.journals, **replayed.journals}
        self._tags = {ref.id: tag for tag, ref in self._refs.items()}
        used = last_commit.tags_used, replayed.tags_used
        self._next_tag = max([*used, *(tag + 1 for tag in self._refs)])
        self._begun_bindings = last_commit.bindings.keys() | replayed.bindings.keys()
        """Bindings that have begun to read: they read each new journal from its first document."""
        self._published_bindings = set(last_commit.bindings)
        self._published_tags = set(last_commit.journals)
        self._forgotten: set[JournalTag] = set()
        """Tags of deleted journals. The next checkpoint lists them as gone."""
        self._readers: dict[Place, int] = {}
        self._journals: dict[JournalId, ReadJournal] = {}
        self._gone: set[JournalId] = set()
        self._gone_tags: set[JournalTag] = set()
        frontier = last_commit.frontier
        places = frontier.journals["place"].tolist()
        self._resume: dict[Place, int] = dict(
            zip(places, frontier.resume_offsets().tolist(), strict=True)
        )
        self.is_listed = False
        """True once the Session knows which journals there are."""
        self.last_checkpoint = 0
        """The number of the last checkpoint of this Session."""

    # -- journals --------------------------------------------------------------------------

    def changed(self, changes: Changes) -> AssignmentChange:
        """Take over what a watch saw: the first time, all journals there are."""
        change = AssignmentChange(checkpoint=self.last_checkpoint, is_cut=self._is_cut)
        if not self.is_listed:
            change.start = {member: [] for member in range(len(self._ranges))}
        for info in changes.created:
            self._create(info, change)
        for id in [*changes.deleted, *self._missing(changes.created)]:
            self._delete(id, change)
        for id, head in changes.heads.items():
            if (journal := self._journals.get(id)) is not None:
                journal.head = max(head, journal.head)
                for place in journal.places:
                    change.heads.setdefault(self._readers[place], []).append((place, head))
        self.is_listed = True
        self._begun_bindings |= self._sources.by_tag.keys()
        return change

    def _missing(self, listed: Iterable[JournalInfo]) -> list[JournalId]:
        """Return the journals of the checkpoint that were deleted before this Session.

        The watch does not see a journal that no binding selects any more, or that only bindings
        of the past read. It may still exist, so its progress is kept for when it comes back.
        """
        if self.is_listed or self._is_cut:
            return []
        unread = _read_by_others(self._last_commit.frontier, self._sources.by_tag.keys())
        there = {info.id for info in listed}
        return [
            ref.id
            for tag, ref in self._last_commit.journals.items()
            if ref.id not in there and tag not in unread and self._sources.of_journal(ref.name)
        ]

    def _create(self, info: JournalInfo, change: AssignmentChange) -> None:
        name = parse_journal_name(info.name)
        found = self._sources.of_journal(name)
        if info.id in self._journals or not found:
            return
        if (tag := self._tags.get(info.id)) is None:
            tag = self._tags[info.id] = JournalTag(self._next_tag)
            self._next_tag += 1
            self._refs[tag] = JournalRef(info.id, info.name)
        elif (known := self._refs[tag].name) != info.name:
            raise _foreign(f"what it knows as {known} is {info.name} here")
        journal = self._journals[info.id] = ReadJournal(info.begin, info.head)
        change.tags.append((info.id, tuple(source.tag for source in found)))
        for source in found:
            new_place = place(tag, source.tag)
            member = assign(name, source, self._ranges)
            self._readers[new_place] = member
            journal.places.append(new_place)
            change.start.setdefault(member, []).append(self._start(new_place, source, info))

    def _start(self, place: Place, source: Source, info: JournalInfo) -> ReadStart:
        offset = self._resume.get(place, info.begin)
        # A binding that has begun reads a new journal from its first document, or else documents
        # were removed unseen. A binding that begins now begins with what is there.
        is_new = place not in self._resume and source.tag in self._begun_bindings
        wanted = FIRST if is_new else offset
        if wanted < info.begin:
            raise BehindRetentionError(
                f"{info.name}: the checkpoint of binding {source.name!r} goes on at {wanted}, and"
                f" retention has removed everything below {info.begin}",
                do="keep more, or reset the task and accept the gap",
            )
        if offset > info.head:
            raise _foreign(f"it goes on at {offset} of {info.name}, which ends at {info.head}")
        rows = self._last_commit.frontier.producers
        begin, end = np.searchsorted(
            rows["place"], np.array([place, place + 1], np.uint64)
        ).tolist()
        producers = tuple((p, commit) for _, p, commit, _ in rows[begin:end].tolist())
        return ReadStart(place, info.id, info.name, Offset(offset), info.head, producers)

    def _delete(self, id: JournalId, change: AssignmentChange) -> None:
        self._gone.add(id)
        if (tag := self._tags.get(id)) is not None:
            self._forgotten.add(tag)
            self._gone_tags.add(tag)
            change.gone.add(tag)
        if (journal := self._journals.pop(id, None)) is not None:
            for place in journal.places:
                change.stop.setdefault(self._readers.pop(place), []).append(place)

    # -- questions -------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of places that Slices read."""
        return len(self._readers)

    @property
    def journals(self) -> Collection[ReadJournal]:
        return self._journals.values()

    def reader(self, place: Place) -> int | None:
        """Return the member that reads a place; None if nobody does."""
        return self._readers.get(place)

    def check_is_read(self, place: Place) -> None:
        """Raises NotFoundError if nobody reads a place of the checkpoint to replay."""
        if self.is_listed and self.reader(place) is None:
            raise NotFoundError(
                f"{self.journal_name(place)} is not read any more, and the checkpoint that is to be"
                " replayed has documents of it",
                do="reset the task, and accept that the last batch is not repeated exactly",
            )

    def is_deleted(self, place: int) -> bool:
        """True if the journal of a place is deleted. Reports of it may still be on their way."""
        return journal_tag(place) in self._gone_tags

    def is_gone(self, journal: JournalId) -> bool:
        """True if the journal is deleted."""
        return journal in self._gone

    def place_of(self, journal: JournalId, binding: int) -> Place | None:
        """Return the place of a journal under a binding; None if nobody reads the journal."""
        tag = self._tags.get(journal)
        return place(tag, binding) if tag is not None and journal in self._journals else None

    def head(self, journal: JournalId) -> Offset:
        return self._journals[journal].head

    def head_of(self, place: Place) -> Offset | None:
        """Return the head of a place's journal; None if nobody reads the place."""
        return self.head(self.journal_id(place)) if place in self._readers else None

    # -- tags ------------------------------------------------------------------------------

    def delta(self, frontier: Frontier) -> Checkpoint:
        """Return the next checkpoint: a frontier, with the tags that are new and that are gone."""
        introduced = set(_journal_tags(frontier)) - self._published_tags
        # All bindings at once: a restart must tell those that had begun from new ones.
        bindings = self._sources.by_tag.keys() - self._published_bindings
        delta = Checkpoint(
            frontier,
            {tag: self._refs[tag] for tag in introduced},
            {tag: self._sources.by_tag[tag].name for tag in bindings},
            frozenset(self._forgotten),
            self._next_tag,
        )
        for tag in self._forgotten:
            del self._tags[self._refs.pop(tag).id]
        self._forgotten = set()
        self.published(delta)
        return delta

    def published(self, delta: Checkpoint) -> None:
        """Count a checkpoint that is handed out, and remember the tags that it has."""
        self.last_checkpoint += 1
        self._published_tags |= delta.journals.keys()
        self._published_tags -= delta.gone
        self._published_bindings |= delta.bindings.keys()

    # -- names -----------------------------------------------------------------------------

    def journal_name(self, place: int) -> str:
        tag = journal_tag(place)
        ref = self._refs.get(tag)
        return ref.name if ref else f"journal {tag}"

    def journal_id(self, place: int) -> JournalId:
        return self._refs[journal_tag(place)].id

    def journal_name_by_id(self, id: JournalId) -> str:
        tag = self._tags.get(id)
        return self._refs[tag].name if tag is not None else f"journal {id}"

    def with_names(self, text: str) -> str:
        """Return `text` with a name for each place that it mentions by its number."""
        return _PLACE.sub(lambda found: self.place_name(int(found[1])), text)

    def place_name(self, place: int) -> str:
        tag = binding_tag(place)
        source = self._sources.by_tag.get(tag)
        binding = source.name if source else f"{tag}"
        return f"journal {self.journal_name(place).removeprefix('journal ')} of binding {binding!r}"

    def validate(self) -> None:
        """Assert what holds between events."""
        places = [place for journal in self._journals.values() for place in journal.places]
        assert sorted(places) == sorted(self._readers), "places and readers differ"
        assert not self._journals.keys() & self._gone, "a deleted journal is read"
        for tag, ref in self._refs.items():
            assert self._tags[ref.id] == tag, f"tag {tag} stands for two journals"
            assert tag < self._next_tag, f"tag {tag} may be given out again"
        for id, journal in self._journals.items():
            assert journal.begin <= journal.head, f"journal {id} ends before it begins"


def _journal_tags(frontier: Frontier) -> Iterator[JournalTag]:
    for tag in np.unique(frontier.journals["place"] >> np.uint64(TAG_BITS)).tolist():
        yield JournalTag(tag)


def _read_by_others(frontier: Frontier, bindings: Iterable[BindingTag]) -> set[JournalTag]:
    """Return the journals that bindings other than these have read."""
    tags = frontier.journals["place"] & np.uint64(TAG_MAX)
    is_other = ~np.isin(tags, np.array(list(bindings), np.uint64))
    return set(_journal_tags(frontier.select(is_other)))


def _foreign(why: str) -> UsageError:
    return UsageError(
        f"the checkpoint is of another workspace, or of a later state of this one: {why}",
        do="use the checkpoint that belongs to it, or reset the task",
    )
