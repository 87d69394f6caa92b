"""Journals in memory, and what producers append to them. Nothing here is random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.clock import Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Changes, Frame
from headrace.journal.local.records import ACK_ROW, NO_JOURNAL
from headrace.journal.sequencer import Flags
from headrace.testing.shuffle.memory_journal import Document, Journal, batch_of

DOCUMENT_BYTES = 10
ACK_BYTES = 5

AckRow = tuple[int, int, int, int]
"""An ACK as hints name it: journal, offset, producer, clock."""
Begins = Mapping[tuple[JournalId, Producer], Offset]
"""The offset where the open span of each (journal, producer) begins."""


class MemoryJournals:
    """The journals of a workspace, the time there, and the clocks of its producers."""

    def __init__(self) -> None:
        self._now = 1_000
        self._clocks: dict[Producer, int] = {}
        """The last clock of each producer."""
        self._numbers = 0
        self.journals: dict[JournalId, Journal] = {}
        """Every journal that was ever created."""
        self.deleted: set[JournalId] = set()

    @property
    def now(self) -> Clock:
        return Clock(self._now)

    def pass_time(self, ticks: int) -> None:
        self._now += ticks

    # -- journals --------------------------------------------------------------------------

    def create_journal(
        self, collection: str, key: int | None = None, name: str | None = None
    ) -> Journal:
        """Create a journal; its name is the next one of its collection and key, if not given."""
        id = JournalId(len(self.journals) + 1)
        if name is None:
            prefix = collection if key is None else f"{collection}/key={key}"
            names = {j.name for j in self.journals.values() if j.name.startswith(f"{prefix}/")}
            name = f"{prefix}/{len(names):04d}"
        created = self.journals[id] = Journal(id, name, collection, key)
        return created

    def there(self) -> dict[JournalId, Journal]:
        """The journals that are not deleted."""
        return {id: j for id, j in self.journals.items() if id not in self.deleted}

    def changes_since(self, known: dict[JournalId, Offset]) -> Changes:
        """What a watch sees that last saw the heads in `known`, which it updates."""
        return self._changes(known, {id: j.head for id, j in self.there().items()})

    def _changes(
        self, known: dict[JournalId, Offset], heads: Mapping[JournalId, Offset]
    ) -> Changes:
        created = [self.journals[id].info(head) for id, head in heads.items() if id not in known]
        deleted = [id for id in known if id not in heads]
        for id in deleted:
            del known[id]
        moved = {id: head for id, head in heads.items() if known.get(id, head) != head}
        known |= heads
        return Changes(created, deleted, moved)

    # -- publishing ------------------------------------------------------------------------

    def take_clocks(self, producer: Producer, count: int) -> int:
        """Give the producer its next consecutive clocks; return the first of them."""
        first = max(self._now, self._clocks.get(producer, 0) + 1)
        self._clocks[producer] = first + count - 1
        return first

    def new_documents(
        self,
        journal: Journal,
        producer: Producer,
        keys: Sequence[int],
        first: int,
        transaction: int = 0,
    ) -> list[Document]:
        """Number documents of these keys; the first has this clock, the others follow it."""
        documents = []
        for clock, key in enumerate(keys, first):
            self._numbers += 1
            documents.append(
                Document(self._numbers, key, journal.id, producer, Clock(clock), transaction)
            )
        return documents

    def append(self, journal: Journal, flags: Flags, documents: Sequence[Document]) -> Frame:
        """Append documents of one producer as one frame."""
        return journal.add(
            1,
            producer=documents[0].producer,
            clock=documents[0].clock,
            documents=len(documents),
            flags=flags,
            body=batch_of(documents),
            bytes=DOCUMENT_BYTES * len(documents),
        )

    def ack_rows(
        self, begins: Begins, clocks: Mapping[Producer, int], before: Iterable[AckRow] = ()
    ) -> list[AckRow]:
        """An ACK at the end of its journal for every open span of these producers.

        `before` are ACKs that will be appended before them.
        """
        there = self.there()
        heads: dict[int, int] = {id: offset + 1 for id, offset, _, _ in before}
        rows: list[AckRow] = []
        for id, producer in sorted(begins):
            if producer in clocks and id in there:
                offset = heads.get(id, self.journals[id].head)
                heads[id] = offset + 1
                rows.append((id, offset, producer, clocks[producer]))
        return rows

    def acknowledge(self, rows: Sequence[AckRow], *, has_hints: bool = True) -> list[Frame]:
        """Append all ACKs at once. Each carries all of them as hints, or only itself."""
        hints = np.array(rows, ACK_ROW)
        return [
            self.journals[JournalId(id)].add(
                1,
                producer=producer,
                clock=Clock(clock),
                documents=0,
                flags=Flags.ACK,
                body=b"",
                bytes=ACK_BYTES,
                hints=hints if has_hints else hints[row : row + 1],
            )
            for row, (id, _, producer, clock) in enumerate(rows)
            if id != NO_JOURNAL
        ]
