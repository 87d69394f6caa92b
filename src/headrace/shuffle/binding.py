"""What a task reads: its bindings, resolved against the collections they name. Pure.

A task knows a binding by its name. The binding's tag is its number within the task. The Session
assigns it once and writes it to the checkpoint that first uses it; it never means another binding.

Bindings of equal (priority, read delay) form a cohort: the Session shows transactions whole within
one. Bindings of equal priority share a lane: a Slice reads the documents of a lane in the order of
their adjusted clocks. An adjusted clock is the clock plus the read delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from headrace.clock import CLOCK_MAX, COUNTER_BITS, TICKS_PER_SECOND, ZERO, Clock
from headrace.errors import REPORT, ProtocolError, UsageError
from headrace.frontier import TAG_MAX, BindingTag
from headrace.journal.collection import Collection
from headrace.journal.documents import schema as schemas
from headrace.journal.names import JournalName, Selector, parse_journal_name

READ_DELAY_S_MAX = 366 * 86400.0
INFINITE = int(CLOCK_MAX)
"""Greater than every adjusted clock."""
ADJUSTED_MAX = INFINITE - 1
"""An adjusted clock that would be greater counts as this one."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a task, as its author writes it."""

    collection: str
    name: str = ""
    """Must stay the same for as long as the task lives. Defaults to the collection's name."""
    selector: Selector | None = None
    key: tuple[str, ...] | None = None
    """The shuffle key: documents of equal keys go to the same member. Defaults to the collection's.

    Without a key, documents spread evenly.
    """
    priority: int = 0
    """Due documents of a higher priority come first."""
    read_delay_s: float = 0.0
    """The task reads a document this long after its clock."""
    not_before: Clock = ZERO
    not_after: Clock = CLOCK_MAX
    """The task leaves out documents with clocks outside of [not_before, not_after]."""


SourceLike = Collection | Binding | str
"""What a user may write for a binding."""


def bindings_of(sources: Sequence[SourceLike]) -> list[Binding]:
    """Return the bindings that a user's list of sources stands for."""
    if isinstance(sources, str | Collection | Binding):
        raise UsageError("sources must be a list", do="write [source], even for a single one")
    return [_binding(source) for source in sources]


def _binding(source: SourceLike) -> Binding:
    if isinstance(source, Binding):
        return source
    if isinstance(source, Collection):
        return Binding(collection=source.name)
    if isinstance(source, str):
        return Binding(collection=source)
    raise UsageError(
        f"a source cannot have the type {type(source).__name__}",
        do="give a Collection, its name or a Binding",
    )


class Source(msgspec.Struct, frozen=True):
    """A binding as the members of a Session need it."""

    tag: BindingTag
    name: str
    collection: str
    selector: Selector
    key: tuple[str, ...]
    schema: bytes
    """The schema of the documents that are read, whatever versions the collection gets later."""
    partition_by: tuple[str, ...]
    lane: int
    """Lane 0 is read first."""
    cohort: int
    delay: int
    """The read delay, in clock units."""
    not_before: Clock
    not_after: Clock
    incarnation: int = 0
    """The id of the collection: one that is deleted and created again gets another."""

    def adjusted(self, clock: int) -> int:
        """Return the clock plus the read delay."""
        return min(clock + self.delay, ADJUSTED_MAX)

    def documents_shown(self, clock: int, count: int) -> int:
        """Count the documents in the clock window, of `count` with clocks from `clock` on."""
        first, last = max(clock, self.not_before), min(clock + count - 1, self.not_after)
        return max(0, last - first + 1)


class Sources:
    """All sources of a task, and ways to find them."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.all = tuple(sources)
        self.by_tag = {source.tag: source for source in self.all}
        self._by_collection: dict[str, list[Source]] = {}
        for source in self.all:
            self._by_collection.setdefault(source.collection, []).append(source)

    @cached_property
    def lanes(self) -> int:
        return 1 + max((source.lane for source in self.all), default=0)

    def of_place(self, place: int) -> Source:
        """Return the source under which the place is read."""
        try:
            return self.by_tag[BindingTag(place & TAG_MAX)]
        except KeyError:
            raise ProtocolError(f"the task has no binding for place {place}", do=REPORT) from None

    def has_place(self, place: int) -> bool:
        """Return True if the place belongs to one of these sources."""
        return BindingTag(place & TAG_MAX) in self.by_tag

    def of_journal(self, name: JournalName | str) -> list[Source]:
        """Return the sources that read the journal. Its name alone decides that."""
        parsed = parse_journal_name(name) if isinstance(name, str) else name
        found = self._by_collection.get(parsed.collection, [])
        return [source for source in found if source.selector.matches(parsed)]


def resolve(
    bindings: Sequence[Binding],
    collections: Mapping[str, Collection],
    known: Mapping[BindingTag, str],
) -> Sources:
    """Check bindings against their collections. Names in `known` keep their tags."""
    names = [binding.name or binding.collection for binding in bindings]
    if not bindings:
        raise UsageError("the task has no bindings", do="name at least one collection")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two bindings are named {name!r}", do="give each its own name")
    tags = {name: tag for tag, name in known.items()}
    for name in names:
        tags.setdefault(name, BindingTag(max(tags.values(), default=-1) + 1))
    lanes = sorted({binding.priority for binding in bindings}, reverse=True)
    cohorts = list(dict.fromkeys((b.priority, b.read_delay_s) for b in bindings))
    return Sources(
        _source(
            binding,
            collections,
            tags[name],
            name,
            lanes.index(binding.priority),
            cohorts.index((binding.priority, binding.read_delay_s)),
        )
        for name, binding in zip(names, bindings, strict=True)
    )


def _source(
    binding: Binding,
    collections: Mapping[str, Collection],
    tag: BindingTag,
    name: str,
    lane: int,
    cohort: int,
) -> Source:
    if (collection := collections.get(binding.collection)) is None:
        raise UsageError(
            f"binding {name!r}: there is no collection {binding.collection!r}",
            do="create it, or correct the name",
        )
    if not 0 <= binding.read_delay_s <= READ_DELAY_S_MAX:
        raise UsageError(
            f"binding {name!r} has a read delay of {binding.read_delay_s} s",
            do=f"choose 0 to {READ_DELAY_S_MAX:.0f}",
        )
    if binding.not_before > binding.not_after:
        raise UsageError(
            f"binding {name!r}: its clock window ends before it begins", do="swap the two"
        )
    key = collection.key if binding.key is None else binding.key
    if key:
        schemas.check_key(collection.schema, key)
    selector = binding.selector or Selector()
    if selector.collection not in ("", collection.name):
        raise UsageError(
            f"binding {name!r}: its selector is for {selector.collection!r}",
            do=f"select journals of {collection.name!r}",
        )
    return Source(
        tag,
        name,
        collection.name,
        Selector(collection.name, selector.include, selector.exclude),
        tuple(key),
        collection.schema.serialize().to_pybytes(),
        collection.partition_by,
        lane,
        cohort,
        int(binding.read_delay_s * TICKS_PER_SECOND) << COUNTER_BITS,
        binding.not_before,
        binding.not_after,
        collection.id,
    )


def document_schema(source: Source) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(source.schema))
