"""Journals and publishers in memory, and what a reader of them must see.

Everything that is published is remembered by what its publisher meant, so that the oracle needs
none of the code that it judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.clock import Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Changes, Frame, JournalInfo, until_full
from headrace.journal.records import ACK_ROW
from headrace.journal.sequencer import Flags

SCHEMA = pa.schema([pa.field("doc", pa.int64()), pa.field("key", pa.int64())])


class Document(NamedTuple):
    """One document, and where it stands."""

    number: int
    key: int
    journal: JournalId
    producer: Producer
    clock: Clock
    transaction: int


def batch_of(documents: Sequence[Document]) -> pa.RecordBatch:
    numbers = np.array([document.number for document in documents], np.int64)
    keys = np.array([document.key for document in documents], np.int64)
    return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(keys)], schema=SCHEMA)


@dataclass(slots=True)
class Journal:
    id: JournalId
    name: str
    frames: list[Frame] = field(default_factory=list)
    head: Offset = field(default=Offset(0))

    def info(self) -> JournalInfo:
        return JournalInfo(self.id, self.name, Offset(0), self.head, len(self.frames))

    def fetch(self, offset: int, through: int, bytes_max: int) -> list[Frame]:
        """As `Journals.fetch`."""
        found = (frame for frame in self.frames if offset <= frame.offset < through)
        return until_full(found, bytes_max, lambda frame: frame.bytes)

    def add(self, step: int, **fields: object) -> Frame:
        """`step` is how far its end is from its offset; positions need not count bytes."""
        end = Offset(self.head + step)
        frame = Frame(journal=self.id, offset=self.head, end=end, schema=0, **fields)  # type: ignore[arg-type]
        self.frames.append(frame)
        self.head = end
        return frame


@dataclass(slots=True, eq=False)
class Open:
    """A transaction that is neither committed nor rolled back."""

    number: int
    producers: list[Producer]
    documents: list[Document] = field(default_factory=list)


class World:
    """Journals of a few collections, written by a few producers."""

    def __init__(
        self, rng: Random, collections: Sequence[str], producers: int, hints: bool
    ) -> None:
        self._rng = rng
        self._collections = list(collections)
        self._hints = hints
        self._clocks: dict[Producer, int] = {}
        self._now = 1_000
        self._numbers = 0
        self._transactions = 0
        self.journals: dict[JournalId, Journal] = {}
        self.deleted: set[JournalId] = set()
        self.open: list[Open] = []
        self.committed: dict[int, list[Document]] = {}
        """By transaction; every OUTSIDE document is one of its own."""
        self.idle = [Producer(at + 1) for at in range(producers)]
        for name in self._collections:
            self.create(name)

    @property
    def now(self) -> Clock:
        return Clock(self._now)

    def pass_time(self, ticks: int) -> None:
        self._now += ticks

    def create(self, collection: str) -> Journal:
        id = JournalId(len(self.journals) + 1)
        number = sum(j.name.startswith(f"{collection}/") for j in self.journals.values())
        made = self.journals[id] = Journal(id, f"{collection}/{number:04d}")
        return made

    def changes_since(self, known: dict[JournalId, Offset]) -> Changes:
        """What a watch sees that has last seen these heads."""
        there = self.there()
        created = [j.info() for id, j in there.items() if id not in known]
        deleted = [id for id in known if id not in there]
        for id in deleted:
            del known[id]
        heads = {id: j.head for id, j in there.items() if known.get(id, j.head) != j.head}
        known |= {id: j.head for id, j in there.items()}
        return Changes(created, deleted, heads)

    def there(self) -> dict[JournalId, Journal]:
        """Those that are not deleted."""
        return {id: j for id, j in self.journals.items() if id not in self.deleted}

    def delete(self) -> None:
        """One, if there are others."""
        if len(there := list(self.there())) > 1:
            self.deleted.add(self._rng.choice(there))

    # -- publishing ------------------------------------------------------------------------

    def begin(self) -> None:
        count = min(len(self.idle), self._rng.choice([1, 1, 1, 2]))
        if count:
            taken = [self.idle.pop(self._rng.randrange(len(self.idle))) for _ in range(count)]
            self._transactions += 1
            self.open.append(Open(self._transactions, taken))

    def write(self, transaction: Open) -> None:
        producer = self._rng.choice(transaction.producers)
        transaction.documents += self._docs(producer, Flags.CONTINUE, transaction.number)

    def write_outside(self) -> None:
        if self.idle:
            self._transactions += 1
            for document in self._docs(self._rng.choice(self.idle), Flags.OUTSIDE, 0):
                self._transactions += 1
                self.committed[self._transactions] = [document]

    def commit(self, transaction: Open) -> None:
        self._end(transaction, commit=True)
        if transaction.documents:
            self.committed[transaction.number] = transaction.documents

    def roll_back(self, transaction: Open) -> None:
        self._end(transaction, commit=False)

    def _docs(self, producer: Producer, flags: Flags, transaction: int) -> list[Document]:
        journal = self._rng.choice(list(self.there().values()))
        count = self._rng.choice([1, 1, 2, 5])
        clock = self._take(producer, count)
        documents = []
        for at in range(count):
            self._numbers += 1
            key = self._rng.randrange(8)
            documents.append(
                Document(self._numbers, key, journal.id, producer, Clock(clock + at), transaction)
            )
        batch = batch_of(documents)
        journal.add(
            1,
            producer=producer,
            clock=Clock(clock),
            documents=count,
            flags=flags,
            body=batch,
            bytes=10 * count,
        )
        return documents

    def _end(self, transaction: Open, *, commit: bool) -> None:
        """All ACKs at once, each at the end of its journal; each has the others as its hints."""
        self.open.remove(transaction)
        self.idle += transaction.producers
        there = self.there()
        spans = sorted(
            {(d.producer, d.journal) for d in transaction.documents if d.journal in there}
        )
        clocks = {p: self._take(p, 1) if commit else 0 for p in transaction.producers}
        heads: dict[JournalId, int] = {}
        rows = []
        for producer, id in spans:
            offset = heads.get(id, self.journals[id].head)
            heads[id] = offset + 1
            rows.append((id, offset, producer, clocks[producer]))
        hints = np.array(rows, ACK_ROW)
        for at, (id, _, producer, clock) in enumerate(rows):
            self.journals[id].add(
                1,
                producer=producer,
                clock=Clock(clock),
                documents=0,
                flags=Flags.ACK,
                body=b"",
                bytes=5,
                hints=hints if self._hints else hints[at : at + 1],
            )

    def _take(self, producer: Producer, count: int) -> int:
        self._now += self._rng.randrange(3)
        first = max(self._now, self._clocks.get(producer, 0) + 1)
        self._clocks[producer] = first + count - 1
        return first

    # -- the oracle ------------------------------------------------------------------------

    def documents_of(self, collections: Iterable[str]) -> dict[int, dict[int, Document]]:
        """By transaction, then by number: what is committed in these collections, and there."""
        wanted = {
            id for id, j in self.there().items() if j.name.rpartition("/")[0] in set(collections)
        }
        return {
            transaction: {d.number: d for d in documents if d.journal in wanted}
            for transaction, documents in self.committed.items()
            if any(d.journal in wanted for d in documents)
        }
