"""Decodes frames from the records of a workspace's log. Pure.

The owner knows where each frame is. It tells a reader on its machine, which reads the log's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from headrace.errors import DataError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Frame
from headrace.journal.hint_tables import WIDE_BYTES, HintTable, HintTableCache
from headrace.journal.local import records
from headrace.journal.local.records import AckTable, Docs
from headrace.journal.sequencer import Flags
from headrace.log import Extent

DOCS_ROW = (1 << 32) - 1
"""The row of a frame whose record is not an `AckTable`."""


class FrameLocation(NamedTuple):
    """Where a frame is in the log's files."""

    offset: Offset
    end: Offset
    row: int
    extent: Extent


_LOCATION_ROW = np.dtype(
    [
        ("offset", "<u8"),
        ("end", "<u8"),
        ("row", "<u4"),
        ("segment", "<u8"),
        ("position", "<u8"),
        ("bytes", "<u4"),
    ]
)


def encode_locations(found: Iterable[FrameLocation]) -> bytes:
    """Return locations as bytes: there is one for every frame that anybody reads."""
    return np.array([(*frame, *extent) for *frame, extent in found], _LOCATION_ROW).tobytes()


def decode_locations(data: bytes) -> list[FrameLocation]:
    return [
        FrameLocation(Offset(offset), Offset(end), row, Extent(*extent))
        for offset, end, row, *extent in np.frombuffer(data, _LOCATION_ROW).tolist()
    ]


def stored_frame(
    journal: JournalId, offset: Offset, end: Offset, row: int, payload: memoryview
) -> Frame:
    """Return the frame that the row of a log record holds."""
    record, body = records.decode(payload)
    if isinstance(record, Docs) and row == DOCS_ROW:
        return Frame(
            journal,
            offset,
            end,
            record.producer,
            record.clock,
            record.documents,
            record.schema,
            record.flags,
            body,
            records.docs_bytes(len(body)),
        )
    if not isinstance(record, AckTable) or row >= len(record.rows):
        raise DataError(
            f"the index of journal {journal} points at a record that is not its own",
            do="remove the newest index snapshot and open the workspace again",
        )
    # Copy the rows: a reader that keeps hints must not keep the segment mapped.
    table = record.rows.copy()
    table.flags.writeable = False
    return ack_frame(journal, offset, end, row, table, brought=True)


def ack_frame(
    journal: JournalId, offset: Offset, end: Offset, row: int, table: HintTable, *, brought: bool
) -> Frame:
    """Return the ACK in a row of a hint table; `brought` is True if its read brought the table."""
    _, _, producer, clock = table[row].tolist()
    size = records.ACK_BYTES + (table.nbytes if brought else 0)
    return Frame(journal, offset, end, producer, clock, 0, 0, Flags.ACK, b"", size, hints=table)


def stored_frames(
    journal: JournalId,
    found: Sequence[FrameLocation],
    tables: HintTableCache[HintTable],
    read: Callable[[Iterable[Extent]], Iterable[memoryview]],
) -> list[Frame]:
    """Return the frames at these locations.

    `read` returns the payloads of extents. It reads each extent once, and none whose hint table
    `tables` remembers.
    """
    known: dict[Extent, HintTable] = {}
    for location in found:
        if location.row != DOCS_ROW and (table := tables.get(location.extent.offset)) is not None:
            known[location.extent] = table
    unread = dict.fromkeys(each.extent for each in found if each.extent not in known)
    payloads = dict(zip(unread, read(unread), strict=True))
    frames: list[Frame] = []
    for offset, end, row, extent in found:
        if (table := known.get(extent)) is not None:
            frames.append(ack_frame(journal, offset, end, row, table, brought=False))
            continue
        frame = stored_frame(journal, offset, end, row, payloads[extent])
        frames.append(frame)
        if frame.hints is not None:
            known[extent] = frame.hints
            if extent.bytes > WIDE_BYTES:
                tables.put(extent.offset, frame.hints, frame.hints.nbytes)
    return frames
