"""Which rows to read straight from journals, without a Session and its members. Pure.

A scan reads either everything that is committed in a journal, or what the checkpoints of a task
showed of it between two numbers. A checkpoint says, for each place and producer, up to which clock
it has shown documents. So a scan begins as a Session would that resumes from the first checkpoint:
at the resume offset of the place, with the producers at their last commits. Of what is committed
there, it takes what the deltas up to the last checkpoint have shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from headrace.clock import CLOCK_MAX, ZERO, Clock
from headrace.errors import BehindRetentionError, NotFoundError, UsageError
from headrace.frontier import BindingTag, Frontier, JournalProgress, reduce
from headrace.ids import FIRST, JournalId, Offset, Producer
from headrace.journal.committed_documents import committed
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.names import parse_journal_name
from headrace.journal.sequencer import Sequence as Sequenced
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef


class Window(msgspec.Struct, frozen=True, array_like=True):
    """The part of a place that checkpoints have shown."""

    offset: Offset
    """Reading begins here."""
    since: dict[Producer, Clock]
    """The last clock of each producer that was shown before, if the checkpoint still keeps it."""
    upto: dict[Producer, Clock]
    """The last clock to show of each producer; producers that are absent are not shown."""


class Scan(msgspec.Struct, frozen=True, array_like=True):
    """A journal to read under a binding, up to the head that `journal` has."""

    journal: JournalInfo
    binding: BindingTag
    window: Window | None = None
    """None to read everything that is committed."""

    @property
    def offset(self) -> Offset:
        return self.window.offset if self.window else self.journal.begin

    @property
    def bytes(self) -> int:
        return self.journal.head - self.offset


def scans_between(
    sources: Sources,
    before: Checkpoint,
    deltas: Sequence[Checkpoint],
    journals: Mapping[JournalId, JournalInfo],
) -> Iterator[Scan]:
    """Yield scans of exactly what the deltas, which follow `before`, have shown.

    Raises NotFoundError or BehindRetentionError if a journal has lost some of that, or may have.
    """
    refs = dict(chain.from_iterable(each.journals.items() for each in (before, *deltas)))
    # Do not prune: a producer that is done appears nowhere else.
    shown = reduce(*(each.frontier for each in deltas))
    for progress in shown.project(bindings=sources.by_tag):
        upto = {p: row.last_commit for p, row in progress.producers.items() if row.last_commit}
        ref, source = refs[progress.journal], sources.by_tag[progress.binding]
        if upto and _selects(source, ref):
            window = _window(before.frontier, progress, upto)
            journal = _check_readable(ref, journals.get(ref.id), window.offset)
            journal = msgspec.structs.replace(journal, head=progress.through)
            yield Scan(journal, progress.binding, window)


def _selects(source: Source, ref: JournalRef) -> bool:
    """Return True if the source selects the journal; raise UsageError if it never could."""
    name = parse_journal_name(ref.name)
    if name.collection != source.collection:
        raise UsageError(
            f"binding {source.name!r} reads {source.collection!r}, and the task has read"
            f" {name.collection!r} under that name",
            do="give the same bindings as the task has",
        )
    return source.selector.matches(name)


def _window(before: Frontier, progress: JournalProgress, upto: dict[Producer, Clock]) -> Window:
    resumed = before.get(progress.journal, progress.binding)
    if resumed is None:
        return Window(FIRST, {}, upto)
    since = {producer: row.last_commit for producer, row in resumed.producers.items()}
    return Window(resumed.resume_offset, since, upto)


def _check_readable(ref: JournalRef, journal: JournalInfo | None, offset: Offset) -> JournalInfo:
    """Return the journal; raise an error if it does not hold everything from `offset` on."""
    if journal is None:
        raise NotFoundError(
            f"journal {ref.name} was deleted, and the checkpoints have shown documents of it",
            do="read only checkpoints that were made after the deletion",
        )
    if offset < journal.begin:
        raise BehindRetentionError(
            f"{ref.name}: the checkpoint goes on at {offset}, and retention has removed everything"
            f" below {journal.begin}",
            do="begin at a later checkpoint, or name no task to read everything that is kept",
        )
    return journal


class FrameRows(NamedTuple):
    """The rows of a frame that a scan reads: from `skip` on, up to but without `end`."""

    frame: Frame
    skip: int
    end: int


def select_rows(source: Source, scan: Scan, frames: Iterable[Frame]) -> Iterator[FrameRows]:
    """Yield the rows that the scan reads.

    If it has a window, `frames` are all frames from its offset on, with ACKs. Otherwise they are
    the committed frames of the journal.
    """
    if scan.window:
        from_first = scan.offset == FIRST
        resumed = {
            producer: Sequenced(commit, is_known=from_first or commit > ZERO)
            for producer, commit in scan.window.since.items()
        }
        frames = committed(frames, resumed)
    for frame in frames:
        upto = scan.window.upto.get(frame.producer, 0) if scan.window else CLOCK_MAX
        # The clocks of a frame's documents are consecutive.
        skip = max(frame.skip, source.not_before - frame.clock)
        end = min(frame.documents, min(upto, source.not_after) - frame.clock + 1)
        if skip < end:
            yield FrameRows(frame, skip, end)
