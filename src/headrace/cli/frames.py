"""From the frames of journals to record batches of their documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.ids import format_producer
from headrace.journal.contract import Frame


def documents(
    collection: hr.Collection, journal: str, frame: Frame, *, meta: bool
) -> pa.RecordBatch:
    """A frame's documents; with `meta` also `_journal`, `_producer` and `_clock`."""
    batch = collection.decode(frame.body, frame.schema).slice(frame.skip)
    if not meta:
        return batch
    rows = batch.num_rows
    first = frame.clock + frame.skip
    return pa.RecordBatch.from_arrays(
        [
            *batch.columns,
            pa.repeat(journal, rows),
            pa.repeat(format_producer(frame.producer), rows),
            pa.array(np.arange(first, first + rows, dtype=np.uint64)),
        ],
        [*batch.schema.names, "_journal", "_producer", "_clock"],
    )


def up_to_now(
    ws: hr.Workspace, name: str, selector: hr.Selector, start: Mapping[str, int], *, meta: bool
) -> Iterator[pa.RecordBatch]:
    """The committed documents of one cut, journal after journal."""
    journals = ws.journals(selector)
    # After the cut: it knows every schema that a frame of the cut was written under.
    collection = ws.collection(name)
    for journal in journals:
        for frame in ws.frames(journal, start.get(journal.name, journal.begin)):
            yield documents(collection, journal.name, frame, meta=meta)
