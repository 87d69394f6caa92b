"""How far a task is behind its sources. Pure.

A journal counts once for every binding that reads it: the bytes from where the checkpoint has read
it to its head.

If nothing is behind, the task has applied everything that is committed: a transaction that waits
for its rest waits for a journal that has more to read. The exception is a lost ACK, which no
journal has.

The lag knows offsets only. So everything counts that follows the last commit in a journal: an open
transaction until it ends, and a rollback, or documents that no checkpoint shows, until the next
checkpoint. Documents that are read and wait for the rest of their transaction do not count; the
rest does.
"""

from __future__ import annotations

from headrace.frontier import BindingTag, JournalTag
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint

BoundJournal = tuple[JournalId, str]
"""A journal and the name of a binding. The sources do not have the checkpoint's tags."""


class Lag:
    """Counts the bytes that the sources have beyond a checkpoint."""

    def __init__(self, sources: Sources, checkpoint: Checkpoint) -> None:
        self._sources = sources
        self._journals: dict[JournalTag, JournalId] = {}
        self._bindings: dict[BindingTag, str] = {}
        self._through: dict[BoundJournal, int] = {}
        self._heads: dict[JournalId, Offset] = {}
        self._begins: dict[JournalId, Offset] = {}
        self._read_as: dict[JournalId, list[str]] = {}
        self._behind: dict[BoundJournal, int] = {}
        self._bytes = 0
        self.apply(checkpoint)

    @property
    def bytes(self) -> int:
        """Bytes that the task is behind."""
        return self._bytes

    def apply(self, delta: Checkpoint) -> None:
        """Merge a delta into the checkpoint."""
        self._journals |= {tag: ref.id for tag, ref in delta.journals.items()}
        self._bindings |= delta.bindings
        for entry in delta.frontier:
            journal = self._journals.get(entry.journal)
            if journal is None or entry.binding not in self._bindings:
                continue
            bound = journal, self._bindings[entry.binding]
            self._through[bound] = max(self._through.get(bound, 0), entry.through)
            if bound in self._behind:
                self._count(bound)

    def change(self, changes: Changes) -> None:
        """Take over which journals were created, were deleted or grew."""
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
        """Forget all journals: the watch begins again, and lists them."""
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

    def _count(self, bound: BoundJournal) -> None:
        position = max(self._through.get(bound, 0), self._begins[bound[0]])
        behind = max(0, self._heads[bound[0]] - position)
        self._bytes += behind - self._behind.get(bound, 0)
        self._behind[bound] = behind
