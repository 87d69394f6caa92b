"""From the frames of a journal to the documents whose transactions committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.ids import FIRST, Producer, format_producer
from headrace.journal import sequencer
from headrace.journal.collection import Collection
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags, FrameOutcome, sequence

META_FIELDS = (
    pa.field("_journal", pa.string()),
    pa.field("_producer", pa.string()),
    pa.field("_clock", pa.uint64()),
)


class CommittedFrames:
    """Passes on the frames of one journal's committed documents, when their transaction commits.

    It sees a span that began before the first frame from that frame on, and shows no span that is
    still open. `known` gives the state of producers before the first frame. The state of others is
    unknown, unless the first frame is the journal's first.
    """

    def __init__(self, known: Mapping[Producer, sequencer.Sequence] | None = None) -> None:
        self._producers = dict(known or {})
        self._pending: dict[Producer, list[Frame]] = {}
        self._unseen: sequencer.Sequence | None = None

    def take(self, frame: Frame) -> Sequence[Frame]:
        """Take the journal's next frame, and return the frames that it commits."""
        if self._unseen is None:
            self._unseen = sequencer.Sequence(is_known=frame.offset == FIRST)
        before = self._producers.get(frame.producer, self._unseen)
        step = sequence(before, frame.flags, frame.clock, frame.documents, frame.offset)
        self._producers[frame.producer] = step.after
        match step.outcome:
            case FrameOutcome.BEGIN | FrameOutcome.EXTEND:
                pending = self._pending.setdefault(frame.producer, [])
                pending.append(frame._replace(skip=step.skip))
            case FrameOutcome.COMMIT if frame.flags is Flags.OUTSIDE:
                return (frame._replace(skip=step.skip),)
            case FrameOutcome.COMMIT:
                return self._pending.pop(frame.producer)
            case FrameOutcome.ROLLBACK:
                del self._pending[frame.producer]
            case FrameOutcome.DUPLICATE | FrameOutcome.EMPTY:
                pass
        return ()


def committed(
    frames: Iterable[Frame], known: Mapping[Producer, sequencer.Sequence] | None = None
) -> Iterator[Frame]:
    """Yield what `CommittedFrames` passes on of one journal's frames."""
    selection = CommittedFrames(known)
    for frame in frames:
        yield from selection.take(frame)


def documents(collection: Collection, journal: str, frame: Frame, *, meta: bool) -> pa.RecordBatch:
    """Return the documents of a frame; `meta` adds `_journal`, `_producer` and `_clock`."""
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
