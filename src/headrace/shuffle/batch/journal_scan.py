"""What is read straight from journals: no Session, no members, nothing to follow. Pure.

Either everything that is committed in a journal, or what the checkpoints of a task have shown of it
between two of them. A checkpoint says, by place and producer, up to which clock it has shown
documents. So what follows one is read like a Session does that resumes there: from the resume
offset of each place, with producers where they stood; and of what is committed, that is taken which
the deltas up to the other have shown.
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
    """What checkpoints have shown of a place."""

    offset: Offset
    """Where reading resumes."""
    since: dict[Producer, Clock]
    """Up to which clocks producers were shown before, as far as the checkpoint keeps that."""
    upto: dict[Producer, Clock]
    """Up to which clocks the producers are shown that were shown at all."""


class Scan(msgspec.Struct, frozen=True, array_like=True):
    """A journal to be read under a binding, up to its head as it is here."""

    journal: JournalInfo
    binding: BindingTag
    window: Window | None = None
    """Without one: everything that is committed there."""

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
    """Exactly what the deltas, which follow `before`, have shown.

    That is refused where a journal has lost some of it, or may have.
    """
    refs = dict(chain.from_iterable(each.journals.items() for each in (before, *deltas)))
    # Not pruned: of a producer that is done there is no other trace.
    shown = reduce(*(each.frontier for each in deltas))
    for progress in shown.project(bindings=sources.by_tag):
        upto = {p: at.last_commit for p, at in progress.producers.items() if at.last_commit}
        ref, source = refs[progress.journal], sources.by_tag[progress.binding]
        if upto and _reads(source, ref):
            window = _window(before.frontier, progress, upto)
            journal = _there(ref, journals.get(ref.id), window.offset)
            journal = msgspec.structs.replace(journal, head=progress.through)
            yield Scan(journal, progress.binding, window)


def _reads(source: Source, ref: JournalRef) -> bool:
    name = parse_journal_name(ref.name)
    if name.collection != source.collection:
        raise UsageError(
            f"binding {source.name!r} reads {source.collection!r}, and the task has read"
            f" {name.collection!r} under that name",
            do="give the bindings of the task",
        )
    return source.selector.matches(name)


def _window(before: Frontier, progress: JournalProgress, upto: dict[Producer, Clock]) -> Window:
    stood = before.get(progress.journal, progress.binding)
    if stood is None:
        return Window(FIRST, {}, upto)
    since = {producer: at.last_commit for producer, at in stood.producers.items()}
    return Window(stood.resume_offset, since, upto)


def _there(ref: JournalRef, journal: JournalInfo | None, offset: Offset) -> JournalInfo:
    if journal is None:
        raise NotFoundError(
            f"journal {ref.name}, which the checkpoints have shown documents of, was deleted",
            do="read checkpoints that came after it",
        )
    if offset < journal.begin:
        raise BehindRetentionError(
            f"{ref.name}: the checkpoint goes on at {offset}, and retention has removed everything"
            f" below {journal.begin}",
            do="begin at a later checkpoint, or leave the task out to read what is there",
        )
    return journal


class ScanPart(NamedTuple):
    """The rows of a frame that are read: those from `skip` on, up to `end`."""

    frame: Frame
    skip: int
    end: int


def parts(source: Source, scan: Scan, frames: Iterable[Frame]) -> Iterator[ScanPart]:
    """Of the frames of a journal; if there is a window, of all from its offset on, with ACKs."""
    if scan.window:
        from_first = scan.offset == FIRST
        stood = {
            producer: Sequenced(commit, is_known=from_first or commit > ZERO)
            for producer, commit in scan.window.since.items()
        }
        frames = committed(frames, stood)
    for frame in frames:
        upto = scan.window.upto.get(frame.producer, 0) if scan.window else CLOCK_MAX
        # The clocks of its documents are consecutive.
        skip = max(frame.skip, source.not_before - frame.clock)
        end = min(frame.documents, min(upto, source.not_after) - frame.clock + 1)
        if skip < end:
            yield ScanPart(frame, skip, end)
