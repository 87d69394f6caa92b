"""Which journals a Session reads, where each begins, and which member reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.errors import BehindRetentionError, NotFoundError, UsageError
from headrace.frontier import TAG_BITS, TAG_MAX, BindingTag, Frontier, JournalTag, place
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
    """What changed in who reads what. Numbers of members are the keys."""

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
        """What Slices are told. They learn of a journal before anybody reads it."""
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
        self._begun = last_commit.bindings.keys() | replayed.bindings.keys()
        self._known_bindings = set(last_commit.bindings)
        self._known_tags = set(last_commit.journals)
        self._forgotten: set[JournalTag] = set()
        """Their journals are gone, and the next checkpoint says so."""
        self._readers: dict[int, int] = {}
        self._places: dict[JournalId, list[int]] = {}
        self._heads: dict[JournalId, Offset] = {}
        self._begins: dict[JournalId, Offset] = {}
        self._gone: set[JournalId] = set()
        self._gone_tags: set[JournalTag] = set()
        frontier = last_commit.frontier
        places = frontier.journals["place"].tolist()
        self._resume = dict(zip(places, frontier.resume_offsets().tolist(), strict=True))
        self.is_listed = False
        """Whether it is known which journals there are."""
        self.made = 0
        """How many checkpoints there were: the last one has this number."""

    # -- journals --------------------------------------------------------------------------

    def changed(self, changes: Changes) -> AssignmentChange:
        """What a watch saw; at first, all journals there are."""
        told = AssignmentChange(checkpoint=self.made, is_cut=self._is_cut)
        if not self.is_listed:
            told.start = {member: [] for member in range(len(self._ranges))}
        for info in changes.created:
            self._created(info, told)
        for id in [*changes.deleted, *self._missing(changes.created)]:
            self._deleted(id, told)
        for id, head in changes.heads.items():
            if id in self._heads:
                self._heads[id] = max(head, self._heads[id])
            for at in self._places.get(id, ()):
                told.heads.setdefault(self._readers[at], []).append((at, head))
        self.is_listed = True
        # What comes to be from now on is read from its first document.
        self._begun |= self._sources.by_tag.keys()
        return told

    def _missing(self, listed: Iterable[JournalInfo]) -> list[JournalId]:
        """The journals of the checkpoint that were deleted before this Session.

        Of a binding that is not read, and of a journal that no binding selects any more, progress
        is kept for when it comes back: whether those journals exist is not watched.
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

    def _created(self, info: JournalInfo, told: AssignmentChange) -> None:
        name = parse_journal_name(info.name)
        found = self._sources.of_journal(name)
        if info.id in self._places or not found:
            return
        if (tag := self._tags.get(info.id)) is None:
            tag = self._tags[info.id] = JournalTag(self._next_tag)
            self._next_tag += 1
            self._refs[tag] = JournalRef(info.id, info.name)
        elif (known := self._refs[tag].name) != info.name:
            raise _foreign(f"what it knows as {known} is {info.name} here")
        self._places[info.id] = []
        self._heads[info.id] = info.head
        self._begins[info.id] = info.begin
        told.tags.append((info.id, tuple(source.tag for source in found)))
        for source in found:
            at = place(tag, source.tag)
            member = assign(name, source, self._ranges)
            self._readers[at] = member
            self._places[info.id].append(at)
            told.start.setdefault(member, []).append(self._start(at, source, info))

    def _start(self, at: int, source: Source, info: JournalInfo) -> ReadStart:
        offset = self._resume.get(at, info.begin)
        # What a binding has not read of before is read from the first document on, or else some
        # were removed unseen; but a new binding begins with what there is.
        wanted = FIRST if at not in self._resume and source.tag in self._begun else offset
        if wanted < info.begin:
            raise BehindRetentionError(
                f"{info.name}: the checkpoint of binding {source.name!r} goes on at {wanted}, and"
                f" retention has removed everything below {info.begin}",
                do="keep more, or reset the task and accept the gap",
            )
        if offset > info.head:
            raise _foreign(f"it goes on at {offset} of {info.name}, which ends at {info.head}")
        rows = self._last_commit.frontier.producers
        begin, end = np.searchsorted(rows["place"], np.array([at, at + 1], np.uint64)).tolist()
        producers = tuple((p, commit) for _, p, commit, _ in rows[begin:end].tolist())
        return ReadStart(at, info.id, info.name, source.tag, Offset(offset), info.head, producers)

    def _deleted(self, id: JournalId, told: AssignmentChange) -> None:
        self._gone.add(id)
        if (tag := self._tags.get(id)) is not None:
            self._forgotten.add(tag)
            self._gone_tags.add(tag)
            told.gone.add(tag)
        self._heads.pop(id, None)
        self._begins.pop(id, None)
        for at in self._places.pop(id, []):
            told.stop.setdefault(self._readers.pop(at), []).append(at)

    # -- what is asked of it ---------------------------------------------------------------

    @property
    def resume(self) -> dict[int, int]:
        """Where each place of the checkpoint is read again from."""
        return dict(self._resume)

    def reader(self, at: int) -> int | None:
        """The member that reads a place."""
        return self._readers.get(at)

    def check_is_read(self, at: int) -> None:
        """Raises NotFoundError if the place is to be replayed and nobody reads it."""
        if self.is_listed and self.reader(at) is None:
            raise NotFoundError(
                f"{self.journal_name(at)} is not read any more, and the checkpoint that is to be"
                " replayed has documents of it",
                do="reset the task, and accept that the last batch is not repeated exactly",
            )

    def is_deleted(self, at: int) -> bool:
        """Whether the journal of a place is deleted. What is said of it may still be on its way."""
        return JournalTag(at >> TAG_BITS) in self._gone_tags

    def place_of(self, journal: JournalId, binding: int) -> int | None:
        tag = self._tags.get(journal)
        return place(tag, binding) if tag is not None and journal in self._places else None

    def head(self, journal: JournalId) -> Offset:
        return self._heads[journal]

    def behind_bytes(self, positions: Mapping[int, int]) -> int:
        """How much journals have beyond these positions, once for each binding that reads them."""
        return sum(
            max(0, self._heads[journal] - max(self._begins[journal], positions.get(at, 0)))
            for journal, places in self._places.items()
            for at in places
        )

    def is_gone(self, journal: JournalId) -> bool:
        return journal in self._gone

    def __len__(self) -> int:
        """How many places are read."""
        return len(self._readers)

    # -- tags ------------------------------------------------------------------------------

    def delta(self, frontier: Frontier) -> Checkpoint:
        """A frontier with the tags that no checkpoint had before, and those that are gone."""
        moved = set(_tags(frontier))
        introduced = moved - self._known_tags
        # All of them at once: a restart must be able to tell those that were there from new ones.
        bindings = self._sources.by_tag.keys() - self._known_bindings
        made = Checkpoint(
            frontier,
            {tag: self._refs[tag] for tag in introduced},
            {tag: self._sources.by_tag[tag].name for tag in bindings},
            frozenset(self._forgotten),
            self._next_tag,
        )
        for tag in self._forgotten:
            del self._tags[self._refs.pop(tag).id]
        self._forgotten = set()
        self.handed_out(made)
        return made

    def handed_out(self, delta: Checkpoint) -> None:
        self.made += 1
        self._known_tags |= delta.journals.keys()
        self._known_tags -= delta.gone
        self._known_bindings |= delta.bindings.keys()

    # -- names -----------------------------------------------------------------------------

    def journal_name(self, at: int) -> str:
        ref = self._refs.get(JournalTag(at >> TAG_BITS))
        return ref.name if ref else f"journal {at >> TAG_BITS}"

    def journal_id(self, at: int) -> JournalId:
        return self._refs[JournalTag(at >> TAG_BITS)].id

    def journal_name_by_id(self, id: JournalId) -> str:
        tag = self._tags.get(id)
        return self._refs[tag].name if tag is not None else f"journal {id}"

    def named(self, text: str) -> str:
        """`text` with the names of the places it mentions."""
        return _PLACE.sub(lambda found: self.place_name(int(found[1])), text)

    def place_name(self, at: int) -> str:
        source = self._sources.by_tag.get(BindingTag(at & TAG_MAX))
        binding = source.name if source else f"{at & TAG_MAX}"
        return f"journal {self.journal_name(at).removeprefix('journal ')} of binding {binding!r}"


def _tags(frontier: Frontier) -> Iterator[JournalTag]:
    for tag in np.unique(frontier.journals["place"] >> np.uint64(TAG_BITS)).tolist():
        yield JournalTag(tag)


def _read_by_others(frontier: Frontier, bindings: Iterable[BindingTag]) -> set[JournalTag]:
    """The journals that bindings other than these have read."""
    of = frontier.journals["place"] & np.uint64(TAG_MAX)
    others = ~np.isin(of, np.array(list(bindings), np.uint64))
    return set(_tags(frontier.select(others)))


def _foreign(why: str) -> UsageError:
    return UsageError(
        f"the checkpoint is of another workspace, or of a later state of this one: {why}",
        do="use the checkpoint that belongs to it, or reset the task",
    )
