"""How far a task is behind its sources. Pure.

A place is a journal that is read under a binding. It counts for the bytes from where a checkpoint
has read the journal to the journal's head.

If nothing is behind, everything that is committed is applied: a transaction that waits for its rest
waits for a journal that has more to be read. The exception is a lost ACK, which stands nowhere.

This knows offsets only. So whatever follows the last commit in a journal counts: an open
transaction until it ends, a rollback or documents that nobody is shown until the next checkpoint.
And documents that are read and wait for the rest of their transaction do not count; the rest does.
"""

from __future__ import annotations

from headrace.frontier import BindingTag, JournalTag
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint

Place = tuple[JournalId, str]
"""A journal and the name of a binding."""


class Lag:
    """Counts the bytes that the sources have beyond a checkpoint."""

    def __init__(self, sources: Sources, checkpoint: Checkpoint) -> None:
        self._sources = sources
        self._journals: dict[JournalTag, JournalId] = {}
        self._bindings: dict[BindingTag, str] = {}
        self._through: dict[Place, int] = {}
        self._heads: dict[JournalId, Offset] = {}
        self._begins: dict[JournalId, Offset] = {}
        self._read_as: dict[JournalId, list[str]] = {}
        self._behind: dict[Place, int] = {}
        self._bytes = 0
        self.apply(checkpoint)

    @property
    def bytes(self) -> int:
        return self._bytes

    def apply(self, delta: Checkpoint) -> None:
        """The checkpoint has moved on by this delta."""
        self._journals |= {tag: ref.id for tag, ref in delta.journals.items()}
        self._bindings |= delta.bindings
        for entry in delta.frontier:
            journal = self._journals.get(entry.journal)
            if journal is None or entry.binding not in self._bindings:
                continue
            at = journal, self._bindings[entry.binding]
            self._through[at] = max(self._through.get(at, 0), entry.through)
            if at in self._behind:
                self._count(at)

    def change(self, changes: Changes) -> None:
        """Journals came, went or grew."""
        for info in changes.created:
            self._create(info)
        for journal in changes.deleted:
            self._delete(journal)
        for journal, head in changes.heads.items():
            if journal in self._heads:
                self._heads[journal] = max(head, self._heads[journal])
                for name in self._read_as[journal]:
                    self._count((journal, name))

    def forget_journals(self) -> None:
        """Whoever watches lists all journals again."""
        for journal in list(self._heads):
            self._delete(journal)

    def _create(self, info: JournalInfo) -> None:
        if names := [source.name for source in self._sources.of_journal(info.name)]:
            self._heads[info.id], self._begins[info.id] = info.head, info.begin
            self._read_as[info.id] = names
            for name in names:
                self._count((info.id, name))

    def _delete(self, journal: JournalId) -> None:
        if self._heads.pop(journal, None) is not None:
            del self._begins[journal]
            for name in self._read_as.pop(journal):
                self._bytes -= self._behind.pop((journal, name))

    def _count(self, at: Place) -> None:
        position = max(self._through.get(at, 0), self._begins[at[0]])
        behind = max(0, self._heads[at[0]] - position)
        self._bytes += behind - self._behind.get(at, 0)
        self._behind[at] = behind
