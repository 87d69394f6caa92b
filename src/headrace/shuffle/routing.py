"""Which member gets a document, and which member reads a journal. Pure.

A member owns a range of key hashes and a range of r-clocks, both of 32 bits; the members' ranges
tile the whole plane, so every document has exactly one owner. The key of a document without a
shuffle key is its clock. Its hash has nothing in common with the r-clock, so such documents spread
evenly whichever way the plane is cut.

Routes are not stored beyond one Session, but members of one Session must agree on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headrace.errors import UsageError
from headrace.journal.documents.keyhash import key_hash
from headrace.journal.names import JournalName, unescape_value
from headrace.shuffle.binding import Source, document_schema

SPACE = 1 << 32
_LAST = SPACE - 1
_HALF = np.uint64(32)

Members = NDArray[np.intp]
"""For each document, the member that owns it."""


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Inclusive at both ends."""

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
    """Equal ranges of key hashes, each with every r-clock."""
    cuts = [-(-at * SPACE // members) for at in range(members + 1)]
    return [Range(cuts[at], cuts[at + 1] - 1) for at in range(members)]


def check_tiling(ranges: Sequence[Range]) -> None:
    """Every point of the plane must lie in exactly one range."""
    for at, one in enumerate(ranges):
        if not (
            0 <= one.key_begin <= one.key_end <= _LAST
            and 0 <= one.rclock_begin <= one.rclock_end <= _LAST
        ):
            raise UsageError(f"member {at} has the range {one}", do="use 0 to 2^32 - 1, in order")
        for before, other in enumerate(ranges[:at]):
            if one.overlaps(other):
                raise UsageError(
                    f"the ranges of members {before} and {at} overlap", do="let them tile"
                )
    if sum(one.area for one in ranges) != SPACE * SPACE:
        raise UsageError("the members' ranges leave a gap", do="let them tile the whole space")


def r_clock(clocks: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The low 32 bits of each clock, reversed: neighbours lie far apart."""
    low = clocks.astype(np.uint32)
    as_bytes = low[:, None].view(np.uint8)
    return _REVERSED[as_bytes[:, ::-1]].copy().view(np.uint32)[:, 0]


_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def _clock_hash(clocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return key_hash(pa.RecordBatch.from_arrays([pa.array(clocks.view(np.int64))], ["_"]), ["_"])


class Router:
    """Maps documents to members."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        check_tiling(ranges)
        self.ranges = tuple(ranges)
        self._evenly = list(ranges) == split_evenly(len(ranges))
        self._by_key_alone = all(r.rclock_begin == 0 and r.rclock_end == _LAST for r in ranges)
        self._order = np.argsort([r.key_begin for r in ranges])
        self._begins = np.array([ranges[at].key_begin for at in self._order], np.uint32)

    def route(
        self, batch: pa.RecordBatch, key: Sequence[str], clocks: NDArray[np.uint64]
    ) -> Members:
        if len(self.ranges) == 1:
            return np.zeros(batch.num_rows, np.intp)
        hashes = key_hash(batch, key) if key else _clock_hash(clocks)
        return self.owners((hashes >> _HALF).astype(np.uint32), clocks)

    def owners(self, hashes: NDArray[np.uint32], clocks: NDArray[np.uint64]) -> Members:
        """By key hashes and clocks."""
        if self._evenly:
            return ((hashes.astype(np.uint64) * np.uint64(len(self.ranges))) >> _HALF).astype(
                np.intp
            )
        if self._by_key_alone:
            return self._order[np.searchsorted(self._begins, hashes, side="right") - 1]
        return self._route_by_both(hashes, r_clock(clocks))

    def _route_by_both(self, hashes: NDArray[np.uint32], r_clocks: NDArray[np.uint32]) -> Members:
        members = np.zeros(len(hashes), np.intp)
        for at, one in enumerate(self.ranges):
            inside = (hashes >= one.key_begin) & (hashes <= one.key_end)
            inside &= (r_clocks >= one.rclock_begin) & (r_clocks <= one.rclock_end)
            members[inside] = at
        return members


def assign(journal: JournalName, source: Source, ranges: Sequence[Range]) -> int:
    """The member whose Slice reads the journal under a binding.

    One whose range meets the journal's documents, to move as few as possible; of several, the one
    of highest random weight, so that a changed topology moves few journals.
    """
    candidates: Iterable[int] = range(len(ranges))
    if (static := static_hash(journal, source)) is not None:
        candidates = [at for at, r in enumerate(ranges) if r.key_begin <= static <= r.key_end]
    name = f"{journal}\0{source.name}".encode()
    return max(candidates, key=lambda at: (xxhash.xxh3_64_intdigest(name, at), at))


def static_hash(journal: JournalName, source: Source) -> int | None:
    """The key hash that all documents of the journal share, if its labels cover the key."""
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
