"""The id of a commit, with which any process can ask what became of it. Pure."""

from __future__ import annotations

import msgspec

from headrace.clock import Clock
from headrace.errors import COMMIT_ID, UsageError
from headrace.ids import Holder, JournalId, Producer

_WORKSPACE_DIGITS = 8


class AppendedFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of an append outside of transactions."""

    journal: JournalId
    clock: Clock


class CommitId(msgspec.Struct, frozen=True, array_like=True):
    """Names a commit or, with `first`, an append outside of transactions.

    Its text has the numbers in hexadecimal with dashes between them, always of the same width.
    """

    workspace: str
    """The first digits of the workspace's identity: no other workspace answers."""
    producer: Producer
    holder: Holder
    clock: Clock
    """The clock of the commit, or of the last frame of an append."""
    journal: JournalId = JournalId(0)
    """The journal of the last frame of an append; 0 for a commit."""
    first: AppendedFrame | None = None
    """The first frame of an append. The log keeps a prefix of an append, so its first and its last
    frame tell what became of all of it."""

    def __str__(self) -> str:
        text = f"{self.workspace}-{self.producer:012x}-{self.holder:016x}-{self.clock:016x}"
        if self.first is None:
            return text
        return f"{text}-{self.journal:016x}-{self.first.clock:016x}-{self.first.journal:016x}"


def workspace_digits(identity: str) -> str:
    """Return the digits that stand for a workspace; zeros if it has no identity."""
    return identity[:_WORKSPACE_DIGITS].rjust(_WORKSPACE_DIGITS, "0")


def parse_commit_id(text: str) -> CommitId:
    if not isinstance(text, str) or not COMMIT_ID.fullmatch(text):
        raise UsageError(
            f"{text!r} is not the id of a commit", do="pass the `id` of an InDoubtError"
        )
    workspace, *fields = text.split("-")
    producer, holder, clock, *appended = (int(field, 16) for field in fields)
    if not appended:
        return CommitId(workspace, Producer(producer), Holder(holder), Clock(clock))
    journal, first_clock, first_journal = appended
    return CommitId(
        workspace,
        Producer(producer),
        Holder(holder),
        Clock(clock),
        JournalId(journal),
        AppendedFrame(JournalId(first_journal), Clock(first_clock)),
    )
