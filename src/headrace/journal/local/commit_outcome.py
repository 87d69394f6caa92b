"""Finds what became of a commit or an append, from what the owner knows."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from headrace.clock import Clock
from headrace.errors import CommitOutcome, InDoubtError, UsageError
from headrace.ids import JournalId, Offset, Producer, format_producer
from headrace.journal.local.index import Index
from headrace.journal.local.owner import Owner
from headrace.journal.write.commit_id import AppendedFrame, CommitId, workspace_digits

_READ_BACK = "read back what was appended"


def find_outcome(owner: Owner, commit: CommitId, fence: bool) -> CommitOutcome:
    """Do what `Journals.outcome` promises."""
    if commit.workspace != workspace_digits(owner.identity):
        raise UsageError(
            f"commit {commit} was sent to another workspace", do="ask the workspace it was sent to"
        )
    if commit.first is None:
        committed = owner.decide(
            lambda state: state.was_committed(
                commit.producer, commit.holder, commit.clock, fence=fence
            )
        )
        return CommitOutcome.COMMITTED if committed else CommitOutcome.ROLLED_BACK
    # This also waits for everything written before, so the index has it.
    owner.decide(lambda state: (state.fence(commit.producer, commit.holder), None))
    if _holds(owner, commit.journal, commit.producer, commit.clock):
        return CommitOutcome.COMMITTED
    if _holds(owner, commit.first.journal, commit.producer, commit.first.clock):
        return CommitOutcome.PARTIAL
    return CommitOutcome.ROLLED_BACK


def find_offset(owner: Owner, producer: Producer, frame: AppendedFrame) -> Offset:
    """Return the offset of a producer's frame. Raises InDoubtError if it is not there."""
    if (found := _find(owner, frame.journal, producer, frame.clock)) is None:
        (name,) = owner.journal_names([frame.journal])
        raise InDoubtError(
            f"journal {name} has no frame of producer {format_producer(producer)} and clock"
            f" {frame.clock}",
            do=_READ_BACK,
        )
    return found


def _holds(owner: Owner, journal: JournalId, producer: Producer, clock: Clock) -> bool:
    return _find(owner, journal, producer, clock) is not None


def _find(owner: Owner, journal: JournalId, producer: Producer, clock: Clock) -> Offset | None:
    """Return where the journal has the producer's frame of that clock; None if nowhere.

    Raises InDoubtError if retention or deletion may have removed it.
    """
    found = owner.with_index(lambda index: _search(index, journal, clock))
    for frame in owner.read(journal, found.begin, found.head, False):
        if frame.producer == producer and frame.clock >= clock:
            if frame.clock == clock:
                return frame.offset
            break
    if not found.is_whole:
        raise InDoubtError(
            f"retention has removed the part of journal {found.name} that would tell",
            do=_READ_BACK,
        )
    return None


class _Range(NamedTuple):
    """The part of a journal that a frame can be in."""

    name: str
    """The name of the journal."""
    begin: Offset
    head: Offset
    is_whole: bool
    """True if retention has removed nothing of this part."""


def _search(index: Index, journal: JournalId, clock: Clock) -> _Range:
    """Return the part of a journal that can hold the frame of a clock."""
    if (found := index.journals.get(journal)) is None:
        name = index.deleted_name(journal)
        which = f"journal {name}" if name else "the journal"
        raise InDoubtError(f"{which}, which would tell, was deleted", do=_READ_BACK)
    first = bisect_left(found.clocks, clock)
    begin = Offset(found.offsets[first]) if first < len(found) else found.head
    return _Range(found.name, begin, found.head, first > 0 or not found.begin)
