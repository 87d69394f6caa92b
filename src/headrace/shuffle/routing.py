"""Which member gets a document, and which member reads a journal. Pure.

A member owns a range of key hashes and a range of r-clocks, both of 32 bits. The members' ranges
tile the whole plane, so every document has exactly one owner. A document without a shuffle key has
its clock for a key. The hash of a clock does not correlate with its r-clock, so such documents
spread evenly however the ranges divide the plane.

All members of a Session must route alike. Nothing that outlives a Session depends on routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headrace.arrow_numbers import arrow_numbers
from headrace.errors import UsageError
from headrace.journal.documents.keyhash import key_hash
from headrace.journal.names import JournalName, unescape_value
from headrace.shuffle.binding import Source, document_schema

SPACE = 1 << 32
_LAST = SPACE - 1
_HALF = np.uint64(32)

Members = NDArray[np.intp]
"""The owner of each document."""


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Key hashes and r-clocks, both ends included."""

    key_begin: int = 0
    key_end: int = _LAST
    rclock_begin: int = 0
    rclock_end: int = _LAST

    @property
    def area(self) -> int:
        return (self.key_end - self.key_begin + 1) * (self.rclock_end - self.rclock_begin + 1)

    def overlaps(self, other: Range) -> bool:
        return (
            self.key_begin <= other.key_end
            and other.key_begin <= self.key_end
            and self.rclock_begin <= other.rclock_end
            and other.rclock_begin <= self.rclock_end
        )


def split_evenly(members: int) -> list[Range]:
    """Return equal ranges of key hashes, each with every r-clock."""
    begins = [-(-member * SPACE // members) for member in range(members + 1)]
    return [Range(begin, end - 1) for begin, end in pairwise(begins)]


def check_tiling(ranges: Sequence[Range]) -> None:
    """Raises UsageError unless every point of the plane lies in exactly one range."""
    for member, range_ in enumerate(ranges):
        if not (
            0 <= range_.key_begin <= range_.key_end <= _LAST
            and 0 <= range_.rclock_begin <= range_.rclock_end <= _LAST
        ):
            raise UsageError(
                f"member {member} has the range {range_}", do="use 0 to 2^32 - 1, in order"
            )
        for before, other in enumerate(ranges[:member]):
            if range_.overlaps(other):
                raise UsageError(
                    f"the ranges of members {before} and {member} overlap",
                    do="choose ranges that tile the whole space",
                )
    if sum(range_.area for range_ in ranges) != SPACE * SPACE:
        raise UsageError(
            "the members' ranges leave a gap", do="choose ranges that tile the whole space"
        )


def r_clock(clocks: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the low 32 bits of each clock, reversed, so that neighbours lie far apart."""
    low = clocks.astype(np.uint32)
    as_bytes = low[:, None].view(np.uint8)
    return _REVERSED[as_bytes[:, ::-1]].copy().view(np.uint32)[:, 0]


_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def _clock_hash(clocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return key_hash(
        pa.RecordBatch.from_arrays([arrow_numbers(clocks.view(np.int64))], ["_"]), ["_"]
    )


class Router:
    """Maps documents to members."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        check_tiling(ranges)
        self.ranges = tuple(ranges)
        self._evenly = list(ranges) == split_evenly(len(ranges))
        self._by_key_alone = all(r.rclock_begin == 0 and r.rclock_end == _LAST for r in ranges)
        self._order = np.argsort([r.key_begin for r in ranges])
        self._begins = np.array([ranges[member].key_begin for member in self._order], np.uint32)

    def route(
        self, batch: pa.RecordBatch, key: Sequence[str], clocks: NDArray[np.uint64]
    ) -> Members:
        if len(self.ranges) == 1:
            return np.zeros(batch.num_rows, np.intp)
        hashes = key_hash(batch, key) if key else _clock_hash(clocks)
        return self.owners((hashes >> _HALF).astype(np.uint32), clocks)

    def owners(self, hashes: NDArray[np.uint32], clocks: NDArray[np.uint64]) -> Members:
        """Return the owner of each document by its key hash and its clock."""
        if self._evenly:
            return ((hashes.astype(np.uint64) * np.uint64(len(self.ranges))) >> _HALF).astype(
                np.intp
            )
        if self._by_key_alone:
            return self._order[np.searchsorted(self._begins, hashes, side="right") - 1]
        return self._route_by_both(hashes, r_clock(clocks))

    def _route_by_both(self, hashes: NDArray[np.uint32], r_clocks: NDArray[np.uint32]) -> Members:
        members = np.zeros(len(hashes), np.intp)
        for member, range_ in enumerate(self.ranges):
            inside = (hashes >= range_.key_begin) & (hashes <= range_.key_end)
            inside &= (r_clocks >= range_.rclock_begin) & (r_clocks <= range_.rclock_end)
            members[inside] = member
        return members


def assign(journal: JournalName, source: Source, ranges: Sequence[Range]) -> int:
    """Return the member whose Slice reads the journal under a binding.

    Its range overlaps with the journal's documents, so that few of them move. Of several such
    members it is the one of highest random weight (HRW), so that few journals move when the number
    of members changes.
    """
    candidates: Iterable[int] = range(len(ranges))
    if (static := static_hash(journal, source)) is not None:
        candidates = [n for n, r in enumerate(ranges) if r.key_begin <= static <= r.key_end]
    name = f"{journal}\0{source.name}".encode()
    return max(candidates, key=lambda member: (xxhash.xxh3_64_intdigest(name, member), member))


def static_hash(journal: JournalName, source: Source) -> int | None:
    """Return the key hash that all documents of the journal share, if its labels cover the key."""
    labels = dict(journal.partition)
    if not source.key or not set(source.key) <= labels.keys():
        return None
    schema = document_schema(source)
    fields = [schema.field(name).with_nullable(True) for name in source.key]
    columns = [pa.array([_value(labels[f.name], f.type)], f.type) for f in fields]
    row = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    return int(key_hash(row, source.key)[0] >> _HALF)


def _value(escaped: str, kind: pa.DataType) -> object:
    text = unescape_value(escaped)
    if text is None or pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    return int(text)
