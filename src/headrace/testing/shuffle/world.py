"""Publishers that write journals in memory at random.

The world remembers what each publisher meant, so that the oracle needs none of the code it judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Changes, Frame
from headrace.journal.local.records import NO_JOURNAL
from headrace.journal.sequencer import Flags
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.memory_journal import Document, Journal
from headrace.testing.shuffle.memory_journals import AckRow, MemoryJournals

KEYS = 8
PARTITIONS = 3
"""A partitioned collection has one or more journals for each key below this number."""


@dataclass(slots=True, eq=False)
class SimulatedTransaction:
    """A transaction that is neither committed nor rolled back."""

    number: int
    producers: list[Producer]
    """The first is the coordinator."""
    documents: list[Document] = field(default_factory=list)
    begins: dict[tuple[JournalId, Producer], Offset] = field(default_factory=dict)
    """The offset where the span of each (journal, producer) begins."""


class World(MemoryJournals):
    """Journals of a few collections, written by a few producers."""

    def __init__(
        self,
        rng: Random,
        collections: Sequence[str],
        producers: int,
        has_hints: bool,
        *,
        partitioned: Collection[str] = (),
        counts: Counter[Kind] | None = None,
    ) -> None:
        super().__init__()
        self._rng = rng
        self._has_hints = has_hints
        self._partitioned = frozenset(partitioned)
        self._counts: Counter[Kind] = Counter() if counts is None else counts
        self._transactions = 0
        self._reported_heads: dict[JournalId, Offset] = {}
        """The greatest head that a watch has reported of each journal; none reports less later."""
        self._written: dict[tuple[JournalId, Producer], tuple[Frame, list[Document]]] = {}
        """The last frame of documents of each producer in each journal."""
        self._last_commits: dict[tuple[int, int], int] = {}
        """The clock of the last commit, by journal and producer."""
        self.open: list[SimulatedTransaction] = []
        self.committed: dict[int, list[Document]] = {}
        """Documents by committed transaction; each OUTSIDE document is a transaction by itself."""
        self.documents: dict[int, Document] = {}
        """Committed documents by number."""
        self.transactions: dict[int, int] = {}
        """The transaction of each committed document, by number."""
        self.streams: dict[tuple[JournalId, Producer], list[Document]] = defaultdict(list)
        """Committed documents by journal and producer, in order."""
        self.idle = [Producer(number) for number in range(1, producers + 1)]
        for name in collections:
            self.create(name)

    # -- journals --------------------------------------------------------------------------

    def create(self, collection: str) -> Journal:
        """Create a journal of the collection, sometimes under the name of a deleted one."""
        key = self._rng.randrange(PARTITIONS) if collection in self._partitioned else None
        mine = [j for j in self.journals.values() if j.collection == collection and j.key == key]
        free = sorted({j.name for j in mine} - {j.name for j in self.there().values()})
        if free and self._rng.random() < 0.7:
            self._counts[Kind.NAME_USED_AGAIN] += 1
            return self.create_journal(collection, key, self._rng.choice(free))
        return self.create_journal(collection, key)

    def delete(self) -> None:
        """Delete one journal, unless it is the only one."""
        if len(there := list(self.there())) > 1:
            self.deleted.add(self._rng.choice(there))
            self._counts[Kind.DELETED] += 1

    def changes_since(self, known: dict[JournalId, Offset], *, lags: bool = False) -> Changes:
        """Return what a watch sees; one that lags sees only some of it."""
        heads = {
            id: self._head(journal, lags)
            for id, journal in self.there().items()
            if id in known or not (lags and self._comes_late(journal))
        }
        self._reported_heads |= heads
        return self._changes(known, heads)

    def _comes_late(self, journal: Journal) -> bool:
        is_late = journal.id not in self._reported_heads and self._rng.random() < 0.3
        self._counts[Kind.LATE_JOURNAL] += is_late and journal.head > 0
        return is_late

    def _head(self, journal: Journal, lags: bool) -> Offset:
        if not lags or self._rng.random() < 0.5:
            return journal.head
        reported_head = self._reported_heads.get(journal.id, Offset(0))
        ends = [
            reported_head,
            *(frame.end for frame in journal.frames if frame.end > reported_head),
        ]
        head = self._rng.choice(ends)
        self._counts[Kind.LAGGING_HEAD] += head < journal.head
        return head

    # -- publishing ------------------------------------------------------------------------

    def begin(self) -> None:
        count = min(len(self.idle), self._rng.choice([1, 1, 2, 3]))
        if count:
            taken = [self.idle.pop(self._rng.randrange(len(self.idle))) for _ in range(count)]
            self._transactions += 1
            self.open.append(SimulatedTransaction(self._transactions, taken))

    def write(self, transaction: SimulatedTransaction) -> None:
        producer = self._rng.choice(transaction.producers)
        journal = self._rng.choice(list(self.there().values()))
        documents = self._write_frame(journal, producer, Flags.CONTINUE, transaction.number)
        transaction.documents += documents
        frame, _ = self._written[journal.id, producer]
        transaction.begins.setdefault((journal.id, producer), frame.offset)

    def write_outside(self) -> None:
        if self.idle:
            producer = self._rng.choice(self.idle)
            journal = self._rng.choice(list(self.there().values()))
            for document in self._write_frame(journal, producer, Flags.OUTSIDE, 0):
                self._transactions += 1
                self._commit(self._transactions, [document])

    def commit(self, transaction: SimulatedTransaction) -> None:
        """Commit the participants that win, and roll back those that lose."""
        self.open.remove(transaction)
        coordinator, *joined = transaction.producers
        losers = [each for each in joined if self._rng.random() < 0.25]
        winners = [each for each in transaction.producers if each not in losers]
        self._counts[Kind.LOSER] += any(d.producer in losers for d in transaction.documents)
        kept = [d for d in transaction.documents if d.producer in winners]
        rows = self.ack_rows(transaction.begins, {p: self.take_clocks(p, 1) for p in winners})
        if rows and coordinator not in {producer for _, _, producer, _ in rows}:
            self._counts[Kind.SILENT_COORDINATOR] += 1
            rows.append((NO_JOURNAL, 0, coordinator, self._clocks[coordinator]))
        if losers and self._rng.random() < 0.3:
            rows += self.ack_rows(transaction.begins, dict.fromkeys(losers, 0), rows)
            self._acknowledge(transaction, rows)
        else:
            self._acknowledge(transaction, rows)
            for loser in losers:
                self._retract(transaction, loser)
        self.idle += transaction.producers
        if kept:
            self._commit(transaction.number, kept)

    def roll_back(self, transaction: SimulatedTransaction) -> None:
        self.open.remove(transaction)
        for producer in transaction.producers:
            self._retract(transaction, producer)
        self.idle += transaction.producers

    def lose(self, transaction: SimulatedTransaction) -> None:
        """Fence a participant and roll it back; the transaction continues without it."""
        if len(transaction.producers) > 1:
            lost = transaction.producers.pop(self._rng.randrange(1, len(transaction.producers)))
            self._counts[Kind.LOST_EARLY] += any(d.producer == lost for d in transaction.documents)
            transaction.documents = [d for d in transaction.documents if d.producer != lost]
            self._retract(transaction, lost)
            transaction.begins = {
                key: begin for key, begin in transaction.begins.items() if key[1] != lost
            }
            self.idle.append(lost)

    def _retract(self, transaction: SimulatedTransaction, producer: Producer) -> None:
        """Roll a producer back, by ACKs of clock zero or of its last commits."""
        rows = self.ack_rows(transaction.begins, {producer: 0})
        if self._rng.random() < 0.3:
            for number, (id, offset, _, _) in enumerate(rows):
                clock = self._last_commits.get((id, producer), 0)
                rows[number] = id, offset, producer, clock
                self._counts[Kind.CLEAN_ROLLBACK] += clock > 0
            for row in rows:
                self._acknowledge(transaction, [row])
        else:
            self._acknowledge(transaction, rows)

    def _commit(self, transaction: int, documents: list[Document]) -> None:
        self.committed[transaction] = documents
        for document in documents:
            self.documents[document.number] = document
            self.transactions[document.number] = transaction
            self.streams[document.journal, document.producer].append(document)

    def _write_frame(
        self, journal: Journal, producer: Producer, flags: Flags, transaction: int
    ) -> list[Document]:
        """Write a frame, which may repeat or overlap another; return the documents new in it."""
        again = self._overlapped(journal, producer, flags, transaction)
        count = self._rng.choice([1, 1, 2, 5])
        if again:
            first = again[-1].clock + 1
            self._clocks[producer] = first + count - 1
        else:
            first = self.take_clocks(producer, count)
        keys = [
            self._rng.randrange(KEYS) if journal.key is None else journal.key for _ in range(count)
        ]
        documents = self.new_documents(journal, producer, keys, first, transaction)
        body = [*again, *documents]
        frame = self.append(journal, flags, body)
        self._written[journal.id, producer] = frame, body
        if flags is Flags.OUTSIDE:
            self._last_commits[journal.id, producer] = body[-1].clock
        if self._may_repeat(journal, producer, frame) and self._rng.random() < 0.1:
            journal.repeat(frame)
            self._counts[Kind.REPEATED_FRAME] += 1
        return documents

    def _overlapped(
        self, journal: Journal, producer: Producer, flags: Flags, transaction: int
    ) -> list[Document]:
        """Documents of the producer's last frame that its next frame repeats: mostly none."""
        frame, documents = self._written.get((journal.id, producer), (None, []))
        if frame is None or self._rng.random() < 0.7:
            return []
        follows = documents[-1].clock == self._clocks[producer]
        is_same = frame.flags is flags and documents[-1].transaction == transaction
        if not (follows and is_same and self._may_repeat(journal, producer, frame)):
            return []
        self._counts[Kind.OVERLAPPING_FRAME] += 1
        return documents[-self._rng.randint(1, len(documents)) :]

    def _may_repeat(self, journal: Journal, producer: Producer, frame: Frame) -> bool:
        """True if every reader that can meet the frame again knows its producer.

        A checkpoint forgets a producer that has nothing open once no restart reads again what the
        producer wrote. So either its own span is open, or another's that began before the frame.
        """
        return frame.flags is Flags.CONTINUE or self._is_pinned(journal, producer, frame)

    def _is_pinned(self, journal: Journal, producer: Producer, frame: Frame) -> bool:
        return any(
            id == journal.id and who != producer and begin < frame.offset
            for transaction in self.open
            for (id, who), begin in transaction.begins.items()
        )

    def _acknowledge(self, transaction: SimulatedTransaction, rows: list[AckRow]) -> None:
        """Write all ACKs at once, and some of them twice."""
        for id, _, producer, clock in rows:
            last = self._last_commits.get((id, producer), 0)
            self._last_commits[id, producer] = max(last, clock)
        for frame in self.acknowledge(rows, has_hints=self._has_hints):
            self._repeat_end(transaction, frame)

    def _repeat_end(self, transaction: SimulatedTransaction, ack: Frame) -> None:
        """Sometimes repeat the ACK, the last frame of its span, or both."""
        if self._rng.random() < 0.5:
            return
        journal = self.journals[ack.journal]
        frame, _ = self._written[journal.id, ack.producer]
        if transaction in self.open or not self._is_pinned(journal, ack.producer, frame):
            return
        if self._rng.random() < 0.7:
            journal.repeat(ack)
            self._counts[Kind.REPEATED_ACK] += 1
        if self._rng.random() < 0.5 and self._is_known_after(journal, frame, ack):
            journal.repeat(frame)
            self._counts[Kind.REPEATED_FRAME] += 1

    def _is_known_after(self, journal: Journal, frame: Frame, ack: Frame) -> bool:
        """True if every reader that can meet the frame after its ACK knows it for a repetition.

        A checkpoint keeps the clock of a commit and none of a rollback. So a reader must have met
        a rolled-back frame the first time too: no restart may begin between the two.
        """
        is_committed = ack.clock >= frame.clock + frame.documents - 1
        return is_committed or not any(
            id == journal.id and begin > frame.offset
            for transaction in self.open
            for (id, _), begin in transaction.begins.items()
        )

    def take_clocks(self, producer: Producer, count: int) -> int:
        self.pass_time(self._rng.randrange(3))
        return super().take_clocks(producer, count)
