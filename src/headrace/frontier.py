"""Frontiers: progress as a value, and the algebra that merges it.

A frontier has, for each place (a journal under a binding), the offset up to which it is read, and
for each producer there the last committed clock and the last span. A span is one signed offset:
`begin >= 0` while it is open, `-end` once a commit or a rollback closed it.

`reduce` merges frontiers that describe the same continuous read of each journal. Along such a read
`through` and `last_commit` never fall, and a producer's spans follow each other:
`begin < end <= next begin < next end`. So the larger magnitude is the later state, and of two
equal ones the open span is later, because it begins exactly where the last one ended. Every column
of the result is therefore the maximum of a total order. So `reduce` does not depend on order or
grouping, and may be repeated. If it merges several prefixes of a read, the result is the state at
the longest of them. (Sums, such as bytes read, would break that: derive lag from offsets.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from headrace.clock import Clock
from headrace.errors import UsageError
from headrace.frontier_rows import (
    JOURNAL_ROW,
    PRODUCER_ROW,
    TAG_BITS,
    TAG_MAX,
    Rows,
    damaged,
    decode_rows,
    encode_rows,
)
from headrace.ids import PRODUCER_BITS, Offset, Producer, format_producer

__all__ = [
    "JOURNAL_ROW",
    "PRODUCER_ROW",
    "TAG_BITS",
    "TAG_MAX",
    "BindingTag",
    "Frontier",
    "JournalProgress",
    "JournalTag",
    "Place",
    "ProducerProgress",
    "binding_tag",
    "diff",
    "journal_tag",
    "place",
    "reduce",
]

JournalTag = NewType("JournalTag", int)
"""A journal's number within a task: 32 bits, assigned once, never reused."""

BindingTag = NewType("BindingTag", int)
"""A binding's number within a task: 32 bits."""

Place = NewType("Place", int)
"""A journal under a binding: the journal's tag, then the binding's, 32 bits each."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    last_commit: Clock
    """Zero if the producer never committed."""
    span: int
    """The begin of the open span, or the negated end of the one that closed last."""

    @property
    def is_open(self) -> bool:
        return self.span >= 0


@dataclass(frozen=True, slots=True)
class JournalProgress:
    journal: JournalTag
    binding: BindingTag
    through: Offset
    """Everything below this offset is read."""
    producers: Mapping[Producer, ProducerProgress] = field(default_factory=dict)

    @property
    def resume_offset(self) -> Offset:
        """The offset from which a restart must read the place again."""
        begins = (Offset(p.span) for p in self.producers.values() if p.is_open)
        return min((self.through, *begins))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Frontier:
    """An immutable frontier: `journals` sorted by place, `producers` by place, then producer."""

    journals: Rows
    producers: Rows

    def __post_init__(self) -> None:
        self.journals.setflags(write=False)
        self.producers.setflags(write=False)

    @classmethod
    def empty(cls) -> Frontier:
        return cls(np.zeros(0, JOURNAL_ROW), np.zeros(0, PRODUCER_ROW))

    @classmethod
    def build(cls, entries: Iterable[JournalProgress]) -> Frontier:
        """Return the frontier of these entries, which may have any order."""
        journals: list[tuple[int, ...]] = []
        producers: list[tuple[int, ...]] = []
        for entry in entries:
            key = place(entry.journal, entry.binding)
            journals.append((key, entry.through))
            producers += [(key, p, s.last_commit, s.span) for p, s in entry.producers.items()]
        try:
            return cls.from_rows(np.array(journals, JOURNAL_ROW), np.array(producers, PRODUCER_ROW))
        except OverflowError:
            raise UsageError(
                "a frontier entry has a number that does not fit into 64 bits",
                do="check the entries",
            ) from None

    @classmethod
    def from_rows(cls, journals: Rows, producers: Rows) -> Frontier:
        """Return the frontier of these rows, in any order.

        Raises UsageError if a place, or a producer in a place, has two rows.
        """
        journals = journals[_order(journals)]
        producers = producers[_order(producers)]
        if flaw := _flaw(journals, producers):
            raise UsageError(f"the rows are not a frontier: {flaw}", do="check the entries")
        return cls(journals, producers)

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self.journals)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frontier):
            return NotImplemented
        return np.array_equal(self.journals, other.journals) and np.array_equal(
            self.producers, other.producers
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Frontier({len(self.journals)} journals, {len(self.producers)} producers)"

    def __iter__(self) -> Iterator[JournalProgress]:
        begins = np.searchsorted(self.producers["place"], self.journals["place"])
        ends = np.searchsorted(self.producers["place"], self.journals["place"], side="right")
        for row, begin, end in zip(self.journals, begins, ends, strict=True):
            yield _readable(row, self.producers[begin:end])

    def get(self, journal: JournalTag, binding: BindingTag) -> JournalProgress | None:
        key = np.uint64(place(journal, binding))
        row = np.searchsorted(self.journals["place"], key)
        if row == len(self) or self.journals["place"][row] != key:
            return None
        begin = np.searchsorted(self.producers["place"], key)
        end = np.searchsorted(self.producers["place"], key, side="right")
        return _readable(self.journals[row], self.producers[begin:end])

    def select(self, rows: Mask) -> Frontier:
        """Return the part at the journal rows where `rows` is true."""
        return Frontier(self.journals[rows], self.producers[rows[self._owners()]])

    def project(
        self,
        *,
        journals: Iterable[JournalTag] | None = None,
        bindings: Iterable[BindingTag] | None = None,
    ) -> Frontier:
        """Return the part that these journals and these bindings have; None means all."""
        rows = np.ones(len(self), np.bool_)
        if journals is not None:
            rows &= np.isin(self.journals["place"] >> TAG_BITS, _tags(journals))
        if bindings is not None:
            rows &= np.isin(self.journals["place"] & TAG_MAX, _tags(bindings))
        return self.select(rows)

    def resume_offsets(self) -> NDArray[np.int64]:
        """Return, for each journal row, the offset from which a restart must read it again.

        It is the least of `through` and the begins of open spans. A read from there meets every
        uncommitted document before its ACK.
        """
        resume: NDArray[np.int64] = self.journals["through"].copy()
        is_open = self.producers["span"] >= 0
        np.minimum.at(resume, self._owners()[is_open], self.producers["span"][is_open])
        return resume

    def prune(self) -> Frontier:
        """Return the frontier without the producers that a restart does not need.

        A producer stays while its span is open, since its documents begin there. It also stays
        while its last span ended above the resume offset: a restart reads those documents again,
        and only `last_commit` shows that they were yielded before. Resume offsets do not change.
        `diff` refuses a pruned frontier if the older one has producers that pruning removed.
        """
        span = self.producers["span"]
        keep = (span >= 0) | (-span > self.resume_offsets()[self._owners()])
        return Frontier(self.journals, self.producers[keep])

    def encode(self) -> bytes:
        """Return compact bytes, equal for equal frontiers: see `decode`."""
        return encode_rows(self.journals, self.producers)

    @classmethod
    def decode(cls, data: bytes) -> Frontier:
        """Return the frontier that `encode` made into `data`.

        Raises DataError if the bytes are damaged, cut short or say something impossible, and
        VersionError if they have a newer format.
        """
        journals, producers = decode_rows(data)
        if flaw := _flaw(journals, producers):
            raise damaged(flaw)
        return cls(journals, producers)

    def _owners(self) -> NDArray[np.intp]:
        """Return, for each producer row, the index of its journal row."""
        return np.searchsorted(self.journals["place"], self.producers["place"])


def reduce(*frontiers: Frontier) -> Frontier:
    """Return the union, with the later state of every place and producer."""
    journals, starts = _grouped([f.journals for f in frontiers], JOURNAL_ROW)
    merged_journals = journals[starts]
    merged_journals["through"] = np.maximum.reduceat(journals["through"], starts)

    producers, starts = _grouped([f.producers for f in frontiers], PRODUCER_ROW)
    merged_producers = producers[starts]
    merged_producers["last_commit"] = np.maximum.reduceat(producers["last_commit"], starts)
    merged_producers["span"] = _span(np.maximum.reduceat(_rank(producers["span"]), starts))
    return Frontier(merged_journals, merged_producers)


def diff(base: Frontier, new: Frontier) -> Frontier:
    """Return the rows of `new` that `base` lacks, so that `reduce(base, diff(base, new)) == new`.

    Raises UsageError if `new` lacks a row of `base`, or has an older state of it.
    """
    merged = reduce(base, new)
    behind = merged.select(
        _changed(merged.journals, new.journals)
        | np.isin(
            merged.journals["place"],
            merged.producers["place"][_changed(merged.producers, new.producers)],
        )
    )
    if len(behind):
        first = next(iter(behind))
        raise UsageError(
            f"the frontier went backwards at {_place_name(behind.journals['place'][0])}: "
            f"{first} is known, {new.get(first.journal, first.binding)} is new",
            do="take the difference from the frontier that the new one follows",
        )
    producers = new.producers[_changed(new.producers, base.producers)]
    rows = _changed(new.journals, base.journals)
    rows |= np.isin(new.journals["place"], producers["place"])
    return Frontier(new.journals[rows], producers)


def place(journal: int, binding: int) -> Place:
    """Return the place of a journal under a binding."""
    if not (0 <= journal <= TAG_MAX and 0 <= binding <= TAG_MAX):
        raise UsageError(
            f"journal {journal}, binding {binding} are not two 32-bit tags", do="check the tags"
        )
    return Place(journal << TAG_BITS | binding)


def journal_tag(place: int) -> JournalTag:
    return JournalTag(place >> TAG_BITS)


def binding_tag(place: int) -> BindingTag:
    return BindingTag(place & TAG_MAX)


def _rank(span: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return numbers that ascend as spans do: by magnitude, then open after closed."""
    return np.abs(span).astype(np.uint64) << np.uint64(1) | (span >= 0).astype(np.uint64)


def _span(rank: NDArray[np.uint64]) -> NDArray[np.int64]:
    offset = (rank >> 1).astype(np.int64)
    return np.where(rank & 1 == 1, offset, -offset)


def _order(rows: Rows) -> NDArray[np.intp]:
    """Return the stable order by place, then producer."""
    if rows.dtype == JOURNAL_ROW:
        return np.argsort(rows["place"], kind="stable")
    return np.lexsort((rows["producer"], rows["place"]))


def _same_as_previous(rows: Rows) -> Mask:
    """Return a mask of the rows from the second on that have the key of the row before."""
    same: Mask = rows["place"][1:] == rows["place"][:-1]
    if rows.dtype == PRODUCER_ROW:
        same &= rows["producer"][1:] == rows["producer"][:-1]
    return same


def _grouped(tables: Sequence[Rows], dtype: np.dtype[Any]) -> tuple[Rows, NDArray[np.intp]]:
    """Return all rows, sorted, and the index where each run of equal keys starts."""
    rows = np.concatenate([np.zeros(0, dtype), *tables])
    rows = rows[_order(rows)]
    return rows, np.flatnonzero(np.r_[np.ones(len(rows[:1]), np.bool_), ~_same_as_previous(rows)])


def _changed(rows: Rows, base: Rows) -> Mask:
    """Return a mask of the rows that `base` does not have exactly as they are."""
    both = np.concatenate([base, rows])
    order = _order(both)
    ordered = both[order]
    known = np.zeros(len(both), np.bool_)
    # Keys are unique on either side, and the sort is stable: an equal neighbour is in `base`.
    known[order[1:]] = ordered[1:] == ordered[:-1]
    return ~known[len(base) :]


def _flaw(journals: Rows, producers: Rows) -> str | None:
    """Return what is wrong with the rows, or None."""
    places = producers["place"]
    owner = np.searchsorted(journals["place"], places)
    if (bad := _first(journals["place"][1:] <= journals["place"][:-1])) is not None:
        return f"{_place_name(journals['place'][bad + 1])} is out of order or there twice"
    if (bad := _first(journals["through"] < 0)) is not None:
        row = journals[bad]
        return f"{_place_name(row['place'])} is read through {row['through']}, which is below zero"
    # `np.isin` would import the masked arrays of numpy, which takes longer than the rest.
    has_row = owner < len(journals)
    has_row[has_row] = journals["place"][owner[has_row]] == places[has_row]
    if (bad := _first(~has_row)) is not None:
        return f"{_producer_name(producers[bad])} has no row for its place"
    misplaced = (places[1:] < places[:-1]) | (
        (places[1:] == places[:-1]) & (producers["producer"][1:] <= producers["producer"][:-1])
    )
    if (bad := _first(misplaced)) is not None:
        return f"{_producer_name(producers[bad + 1])} is out of order or there twice"
    if (
        bad := _first((producers["producer"] == 0) | (producers["producer"] >> PRODUCER_BITS > 0))
    ) is not None:
        return f"{_producer_name(producers[bad])} is not a 48-bit producer"
    # As unsigned, the one magnitude that int64 cannot hold stays the largest of all.
    beyond = np.abs(producers["span"]).view(np.uint64) > journals["through"][owner].view(np.uint64)
    if (bad := _first(beyond)) is not None:
        row, through = producers[bad], journals["through"][owner[bad]]
        return (
            f"{_producer_name(row)} has a span at {row['span']}, but is read only through {through}"
        )
    return None


def _first(mask: Mask) -> int | None:
    return int(np.argmax(mask)) if mask.any() else None


def _place_name(place: np.uint64) -> str:
    return f"journal {journal_tag(int(place))}, binding {binding_tag(int(place))}"


def _producer_name(row: np.void) -> str:
    producer = format_producer(Producer(int(row["producer"])))
    return f"{_place_name(row['place'])}: producer {producer}"


def _readable(journal: np.void, producers: Rows) -> JournalProgress:
    return JournalProgress(
        journal_tag(int(journal["place"])),
        binding_tag(int(journal["place"])),
        Offset(int(journal["through"])),
        {
            Producer(producer): ProducerProgress(Clock(last_commit), span)
            for _, producer, last_commit, span in producers.tolist()
        },
    )


def _tags(tags: Iterable[int]) -> NDArray[np.uint64]:
    return np.fromiter(tags, np.uint64)
