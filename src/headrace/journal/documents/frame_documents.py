"""Frames as their readers want them: record batches of documents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.ids import format_producer
from headrace.journal.collection import Collection
from headrace.journal.contract import Frame

META_FIELDS = (
    pa.field("_journal", pa.string()),
    pa.field("_producer", pa.string()),
    pa.field("_clock", pa.uint64()),
)


def documents(collection: Collection, journal: str, frame: Frame, *, meta: bool) -> pa.RecordBatch:
    """A frame's documents; with `meta` also `_journal`, `_producer` and `_clock`."""
    batch = collection.decode(frame.body, frame.schema).slice(frame.skip)
    if not meta:
        return batch
    rows = batch.num_rows
    first = frame.clock + frame.skip
    columns = [
        pa.repeat(journal, rows),
        pa.repeat(format_producer(frame.producer), rows),
        pa.array(np.arange(first, first + rows, dtype=np.uint64)),
    ]
    schema = pa.schema([*collection.schema, *META_FIELDS])
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)
