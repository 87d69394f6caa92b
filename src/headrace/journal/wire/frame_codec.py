"""Frames on the wire: their heads and tables of hints, and beside these their bodies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.ids import JournalId
from headrace.journal.contract import Frame
from headrace.journal.local.records import ACK_BYTES, docs_bytes
from headrace.journal.sequencer import Flags
from headrace.journal.wire.hint_tables import Table
from headrace.journal.wire.messages import FrameHead, Frames


def packed(frames: Sequence[Frame]) -> tuple[Frames, tuple[Any, ...]]:
    """Frames with all their tables, and their bodies."""
    numbers: dict[int, int] = {}
    tables: list[bytes] = []
    heads: list[FrameHead] = []
    for frame in frames:
        if frame.hints is not None and id(frame.hints) not in numbers:
            numbers[id(frame.hints)] = len(tables)
            tables.append(frame.hints.tobytes())
        heads.append(frame_head(frame, -1 if frame.hints is None else numbers[id(frame.hints)]))
    return Frames(heads, tables), tuple(frame.body for frame in frames)


def frame_head(frame: Frame, table: int) -> FrameHead:
    return FrameHead(
        frame.offset,
        frame.end,
        frame.producer,
        frame.clock,
        frame.documents,
        frame.schema,
        frame.flags,
        frame.skip,
        table,
    )


def unpacked(
    journal: JournalId, frames: Frames, bodies: Sequence[Any], tables: Sequence[Table]
) -> Iterator[Frame]:
    """`tables` are those that the heads name; each counts for the first frame that has it here."""
    brought = [len(rows) for rows in frames.hints]
    for head, body in zip(frames.heads, bodies, strict=True):
        size = docs_bytes(len(body))
        hints = None
        if head.hints >= 0:
            hints = tables[head.hints]
            size = ACK_BYTES + brought[head.hints]
            brought[head.hints] = 0
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
