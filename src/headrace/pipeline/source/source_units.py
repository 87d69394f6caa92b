"""Units: what a source is split into, so that each part means the same after a restart. Pure.

A unit's id is a hash of what it refers to. The same rows have the same id in every run, whatever
their order; rows that changed have another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import msgspec

ROWS_PER_UNIT = 1000


class FileUnit(msgspec.Struct, frozen=True, tag="file"):
    """Rows of a file."""

    path: str
    format: str
    first: int
    count: int
    """The number of rows; -1 means all of the file."""
    fingerprint: str
    """Of the file when the source was planned."""


class JournalUnit(msgspec.Struct, frozen=True, tag="journal"):
    """The committed documents of a range of a journal."""

    collection: str
    journal: str
    incarnation: int
    begin: int
    end: int


class TableUnit(msgspec.Struct, frozen=True, tag="table"):
    """Rows that were stored as a payload when the source was planned."""

    ref: str
    first: int
    """The number of its first row in the table."""
    rows: int
    content: str
    """A hash of the rows."""


Unit = FileUnit | JournalUnit | TableUnit

_decoder: msgspec.msgpack.Decoder[Unit] = msgspec.msgpack.Decoder(Unit)


def unit_id(unit: Unit) -> str:
    """Return the id of a unit. Where its rows are stored makes no difference."""
    if isinstance(unit, TableUnit):
        return digest("table", str(unit.first), unit.content)
    return digest(msgspec.msgpack.encode(unit))


def encode_unit(unit: Unit) -> bytes:
    return msgspec.msgpack.encode(unit)


def decode_unit(data: bytes) -> Unit:
    return _decoder.decode(data)


def unit_rows(unit: Unit) -> int:
    """Return the number of rows, or -1 if it is not known before they are read."""
    match unit:
        case FileUnit(count=count):
            return count
        case TableUnit(rows=rows):
            return rows
    return -1


def known_rows(units: Sequence[Unit]) -> int | None:
    """Return the number of rows of all units; None if one must be read to know."""
    counts = [unit_rows(unit) for unit in units]
    return None if -1 in counts else sum(counts)


def ranges(rows: int, per_unit: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of units that cover `rows` rows. No rows make no unit."""
    for first in range(0, rows, per_unit):
        yield first, min(per_unit, rows - first)


def digest(*parts: str | bytes) -> str:
    """Return a short hash of the parts in their order."""
    hashed = blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.hexdigest()


def units_fingerprint(units: Iterable[Unit]) -> str:
    """Identify what a source holds, whatever the order of its units."""
    return digest(*sorted(unit_id(unit) for unit in units))
