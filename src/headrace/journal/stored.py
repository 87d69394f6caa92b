"""Frames as the log of a workspace stores them. Pure.

The owner knows where each frame is. A reader on its machine is told, and reads the log's files.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import DataError
from headrace.ids import JournalId, Offset
from headrace.journal import records
from headrace.journal.contract import Frame
from headrace.journal.records import Acks, Docs
from headrace.journal.sequencer import Flags
from headrace.log import Extent

DOCS_ROW = (1 << 32) - 1
"""The row of a frame that is not a row of an `Acks` table."""


class Stored(NamedTuple):
    """Where a frame is."""

    offset: Offset
    end: Offset
    row: int
    extent: Extent


def stored_frame(
    journal: JournalId, offset: Offset, end: Offset, row: int, payload: memoryview
) -> Frame:
    """The frame that a payload of the log holds, in that row."""
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
    if not isinstance(record, Acks):
        raise DataError(
            f"the index of journal {journal} points at something else",
            do="remove the newest index snapshot and open the workspace again",
        )
    _, _, producer, clock = record.rows[row].tolist()
    size = records.ACK_BYTES + record.rows.nbytes
    return Frame(
        journal, offset, end, producer, clock, 0, 0, Flags.ACK, b"", size, hints=record.rows
    )
