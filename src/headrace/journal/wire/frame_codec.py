"""Frames on the wire: one message holds their heads and hint tables, beside their bodies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.clock import Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.hint_tables import HintTable
from headrace.journal.local.records import ACK_BYTES, docs_bytes
from headrace.journal.sequencer import Flags


class FrameHead(msgspec.Struct, frozen=True, array_like=True):
    """A frame without its body, its journal and its hints."""

    offset: Offset
    end: Offset
    producer: Producer
    clock: Clock
    documents: int
    schema: int
    flags: int
    skip: int
    hints: int
    """The index of the frame's table in `Frames.hints`; -1 if it has none."""


class Frames(msgspec.Struct, frozen=True, array_like=True, tag="frames"):
    """Frames of one journal; each has a body. ACKs of one transaction share its hint table."""

    heads: list[FrameHead]
    hints: list[bytes]
    """The rows of `AckTable` records."""


class FrameEncoder:
    """Collects frames for one message, and each hint table once."""

    def __init__(self) -> None:
        self._heads: list[FrameHead] = []
        self._hints: list[bytes] = []
        self.tables: dict[int, int] = {}
        """The index of each table in `Frames.hints`, by the key that `add` got."""
        self.bodies: list[Any] = []

    @property
    def frames(self) -> Frames:
        return Frames(self._heads, self._hints)

    def add(self, frame: Frame, key: int, *, is_known: bool = False) -> int:
        """Add a frame and return how many bytes that takes.

        Frames with the same `key` share one hint table. The message leaves out the rows of a table
        that the reader knows.
        """
        # Unpacking costs less than ten attributes, and this runs for every frame that is read.
        _, offset, end, producer, clock, documents, schema, flags, body, _, skip, hints = frame
        added = docs_bytes(len(body))
        table = -1
        if hints is not None and (table := self.tables.get(key, -1)) < 0:
            table = self.tables[key] = len(self._hints)
            self._hints.append(b"" if is_known else hints.tobytes())
            added += len(self._hints[-1])
        self._heads.append(
            FrameHead(offset, end, producer, clock, documents, schema, flags, skip, table)
        )
        self.bodies.append(body)
        return added


def decode_frames(
    journal: JournalId, frames: Frames, bodies: Sequence[Any], tables: Sequence[HintTable]
) -> Iterator[Frame]:
    """Yield the frames of a message; `tables` are its hint tables, decoded or remembered.

    The bytes of a table count for the first frame that uses it, if the message brought them.
    """
    uncounted = [len(rows) for rows in frames.hints]
    for head, body in zip(frames.heads, bodies, strict=True):
        size = docs_bytes(len(body))
        hints = None
        if head.hints >= 0:
            hints = tables[head.hints]
            size = ACK_BYTES + uncounted[head.hints]
            uncounted[head.hints] = 0
        yield Frame(
            journal,
            head.offset,
            head.end,
            head.producer,
            head.clock,
            head.documents,
            head.schema,
            Flags(head.flags),
            body,
            size,
            head.skip,
            hints,
        )
