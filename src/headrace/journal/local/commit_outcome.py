"""What became of a commit or an append, as the owner knows it."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from headrace.clock import Clock
from headrace.errors import CommitOutcome, InDoubtError, UsageError
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.local.index import Index
from headrace.journal.local.owner import Owner
from headrace.journal.write.commit_id import CommitId, workspace_digits

_READ_BACK = "read back what was appended"


def find_outcome(owner: Owner, asked: CommitId, fence: bool) -> CommitOutcome:
    """As `Journals.outcome`."""
    if asked.workspace != workspace_digits(owner.identity):
        raise UsageError(
            f"commit {asked} was sent to another workspace", do="ask the workspace it was sent to"
        )
    if asked.first is None:
        committed = owner.decide(
            lambda state: state.was_committed(
                asked.producer, asked.holder, asked.clock, fence=fence
            )
        )
        return CommitOutcome.COMMITTED if committed else CommitOutcome.ROLLED_BACK
    # Also waits for what was written before, so the index has it.
    owner.decide(lambda state: (state.fence(asked.producer, asked.holder), None))
    if _holds(owner, asked.journal, asked.producer, asked.clock):
        return CommitOutcome.COMMITTED
    if _holds(owner, asked.first.journal, asked.producer, asked.first.clock):
        return CommitOutcome.PARTIAL
    return CommitOutcome.ROLLED_BACK


def _holds(owner: Owner, journal: JournalId, producer: Producer, clock: Clock) -> bool:
    """Whether the journal has the producer's frame of that clock.

    InDoubtError if it may have had it: retention or deletion came first.
    """
    found = owner.with_index(lambda index: _search(index, journal, clock))
    for frame in owner.read(journal, found.begin, found.head, False):
        if frame.producer == producer and frame.clock >= clock:
            if frame.clock == clock:
                return True
            break
    if not found.is_whole:
        raise InDoubtError(
            f"retention has removed the part of journal {found.name} that would tell",
            do=_READ_BACK,
        )
    return False


class _Range(NamedTuple):
    """Where in a journal a frame can be."""

    name: str
    """Of the journal."""
    begin: Offset
    head: Offset
    is_whole: bool
    """Retention has removed nothing of it."""


def _search(index: Index, journal: JournalId, clock: Clock) -> _Range:
    """Where the frame of a clock can be."""
    if (found := index.journals.get(journal)) is None:
        name = index.deleted_name(journal)
        which = f"journal {name}" if name else "the journal"
        raise InDoubtError(f"{which}, which would tell, was deleted", do=_READ_BACK)
    at = bisect_left(found.clocks, clock)
    begin = Offset(found.offsets[at]) if at < len(found) else found.head
    return _Range(found.name, begin, found.head, at > 0 or not found.begin)
