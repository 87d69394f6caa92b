"""From all frames of a journal to those whose transactions committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headrace.ids import FIRST, JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags, FrameOutcome, Sequence, sequence


def committed(
    frames: Iterable[Frame], stood: Mapping[Producer, Sequence] | None = None
) -> Iterator[Frame]:
    """The frames of one journal's committed documents, at the place of their commit.

    A span that began before the first frame is seen from there on; one that is still open at
    the last is not seen at all. `stood` says where producers did before it; of others that is
    unknown, unless the first frame is the journal's first.
    """
    states = dict(stood or {})
    pending: dict[Producer, list[Frame]] = {}
    begins: dict[JournalId, Offset] = {}
    for frame in frames:
        begin = begins.setdefault(frame.journal, frame.offset)
        before = states.get(frame.producer) or Sequence(is_known=begin == FIRST)
        step = sequence(before, frame.flags, frame.clock, frame.documents, frame.offset)
        states[frame.producer] = step.after
        match step.outcome:
            case FrameOutcome.BEGIN | FrameOutcome.EXTEND:
                pending.setdefault(frame.producer, []).append(frame._replace(skip=step.skip))
            case FrameOutcome.COMMIT if frame.flags is Flags.OUTSIDE:
                yield frame._replace(skip=step.skip)
            case FrameOutcome.COMMIT:
                yield from pending.pop(frame.producer)
            case FrameOutcome.ROLLBACK:
                del pending[frame.producer]
            case FrameOutcome.DUPLICATE | FrameOutcome.EMPTY:
                pass
