"""Decides for the owner of a workspace about producers and transactions. Pure.

The state checks a request, then turns it into log records. `apply` alone changes what is durable,
and replaying the log after a crash applies the same records. The owner applies records when it
queues them, before they are synced: if the sync fails, it accepts nothing more, and the next owner
builds the state again from what the disk has.

Leases and open transactions are not durable. They end with their owner, and a new owner rolls
back every span that it finds open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.clock import CLOCK_MAX, ZERO, Clock
from headrace.errors import FencedError, InDoubtError, NotFoundError, ProtocolError
from headrace.ids import Holder, JournalId, Offset, Producer, format_producer
from headrace.journal.contract import NO_HOLDER, CommitRequest, Lease, Prepared, Write
from headrace.journal.local import records
from headrace.journal.local.catalog import Catalog, CatalogChange
from headrace.journal.local.producers import COMMITS_REMEMBERED, NOBODY, Client, ProducerState
from headrace.journal.local.records import (
    AckTable,
    Docs,
    JournalsDeleted,
    PublisherOpened,
    Record,
    Trimmed,
)
from headrace.journal.names import check_publisher_name
from headrace.journal.sequencer import Flags


@dataclass(slots=True)
class PublisherState:
    """A named publisher."""

    producer: Producer
    payload: bytes = b""
    """The payload of its last committed transaction."""


@dataclass(slots=True)
class SharedTransaction:
    """A transaction that others may join."""

    coordinator: Producer
    participants: set[Producer] = field(default_factory=set)


@dataclass(slots=True)
class OwnerState:
    """Methods return the records that they applied; the caller logs them in that order.

    `validate` asserts the invariants.
    """

    catalog: Catalog = field(default_factory=Catalog)
    producers: dict[Producer, ProducerState] = field(default_factory=dict)
    publishers: dict[str, PublisherState] = field(default_factory=dict)
    last_holder: int = 0
    idle: deque[Producer] = field(default_factory=deque)
    """Anonymous producers that nobody holds; the longest idle one is leased first."""
    transactions: dict[int, SharedTransaction] = field(default_factory=dict)

    def change_catalog(self, changes: Iterable[CatalogChange]) -> list[Record]:
        return [self._apply(change) for change in changes]

    def trim(self, begins: Iterable[tuple[JournalId, Offset]]) -> list[Record]:
        """Let journals begin later, but never after the begin of an open span, nor their head."""
        open_since: dict[JournalId, Offset] = {}
        for producer in self.producers.values():
            for journal, begin in producer.spans.items():
                open_since[journal] = min(begin, open_since.get(journal, begin))
        kept = [
            (
                journal,
                min(begin, open_since.get(journal, begin), self.catalog.journals[journal].head),
            )
            for journal, begin in begins
            if journal in self.catalog.journals
        ]
        return [self._apply(Trimmed(kept))] if kept else []

    def open_publisher(
        self, client: Client, name: str, fresh: Producer
    ) -> tuple[list[Record], Lease]:
        """Lease the producer of a name, or an idle one; `fresh` is a random one for a new lease."""
        check_publisher_name(name)
        if not name:
            return [], self._lease(client, self.idle.popleft() if self.idle else fresh)
        known = self.publishers.get(name) or PublisherState(fresh)
        decided = self._end(known.producer) if known.producer in self.producers else []
        lease = self._lease(client, known.producer)
        decided.append(self._apply(PublisherOpened(name, lease.producer, lease.holder)))
        return decided, Lease(lease.producer, lease.holder, lease.clock, known.payload)

    def payloads(self, prefix: str) -> dict[str, bytes]:
        """Return the last payload of each publisher whose name begins so."""
        return {
            name: publisher.payload
            for name, publisher in self.publishers.items()
            if publisher.payload and name.startswith(prefix)
        }

    def close_publisher(self, client: Client, producer: Producer, holder: Holder) -> list[Record]:
        self._held(client, producer, holder)
        return self._end(producer)

    def give_up(self, client: Client, producer: Producer, holder: Holder) -> list[Record]:
        """End a client's lease like `close_publisher`, if the client still holds it."""
        state = self.producers.get(producer)
        held = state is not None and (state.client, state.holder) == (client, holder)
        return self._end(producer) if held else []

    def client_lost(self, client: Client) -> list[Record]:
        """Roll back and fence every producer whose lease depends on this client."""
        lost = [p for p, state in self.producers.items() if state.client == client]
        return [record for producer in lost for record in self._end(producer)]

    def roll_back_all(self) -> list[Record]:
        """Roll back every open span. A new owner does this first."""
        self.idle = deque(p for p, state in self.producers.items() if not state.name)
        return self._roll_back(self.producers)

    def write(self, client: Client, write: Write, bodies_bytes: Sequence[int]) -> list[Record]:
        """Return the records of a write, all or none; body i belongs to the i-th Docs record.

        Documents for a deleted journal go to the journal that has its name now; if there is none,
        the write creates it.
        """
        state = self._held(client, write.producer, write.holder)
        self._check_lost(write, state)
        gone = {each.journal for each in write.docs if each.journal not in self.catalog.journals}
        found, changes = self.catalog.find_again(sorted(gone)) if gone else ({}, [])
        if found:
            heads = (
                replace(each, journal=found.get(each.journal, each.journal)) for each in write.docs
            )
            write = replace(write, docs=tuple(heads))
        state.check_write(write, len(bodies_bytes), self._journal_name)
        if write.commit:
            self._check_commit(write.producer, write.commit, state)
        decided: list[Record] = self.change_catalog(changes)
        for head, body_bytes in zip(write.docs, bodies_bytes, strict=True):
            docs = Docs(
                head.journal,
                self.catalog.journals[head.journal].head,
                write.producer,
                head.clock,
                head.documents,
                head.schema,
                head.flags,
            )
            decided.append(self._apply(docs, body_bytes))
        if write.commit:
            decided += self._commit(write.producer, write.commit, state)
        return decided

    def rollback(self, client: Client, producer: Producer, holder: Holder) -> list[Record]:
        self._held(client, producer, holder)
        return self._roll_back([producer]) + self._end_participants(producer)

    def begin(self, client: Client, producer: Producer, holder: Holder, transaction: int) -> None:
        """Open a transaction to others; `transaction` is a random number that nobody can guess."""
        state = self._held(client, producer, holder)
        if state.transaction:
            raise ProtocolError(
                "the publisher has opened a transaction already",
                do="commit it or roll it back",
            )
        state.transaction = transaction
        self.transactions[transaction] = SharedTransaction(producer)

    def join(self, client: Client, transaction: int, fresh: Producer) -> Lease:
        if (joined := self.transactions.get(transaction)) is None:
            raise FencedError(
                "the transaction to join has ended", do="run this part again in a new one"
            )
        lease = self._lease(client, self.idle.popleft() if self.idle else fresh)
        self.producers[lease.producer].transaction = transaction
        joined.participants.add(lease.producer)
        return lease

    def prepare(self, client: Client, prepared: Prepared) -> None:
        state = self._held(client, prepared.producer, prepared.holder)
        transaction = self.transactions.get(state.transaction)
        joined = transaction is not None and prepared.producer in transaction.participants
        ascends = state.last_clock < prepared.clock <= CLOCK_MAX
        if transaction is None or not joined or not ascends or state.prepared:
            raise ProtocolError(
                f"publisher {format_producer(prepared.producer)} cannot prepare",
                do="join a transaction first, prepare once, with a clock above what was written",
            )
        state.prepared = prepared
        state.client = self.producers[transaction.coordinator].client

    def fence(self, producer: Producer, holder: Holder) -> list[Record]:
        """End a holder's lease, whichever client has it. Does nothing if it has ended."""
        state = self.producers.get(producer)
        return self._end(producer) if state and state.holder == holder else []

    def was_committed(
        self, producer: Producer, holder: Holder, clock: Clock, *, fence: bool = True
    ) -> tuple[list[Record], bool]:
        """True if the holder committed that clock; `fence` ends its lease, so this stays true."""
        state = self.producers.get(producer)
        if state is None:
            return [], False
        last = dict(state.commits).get(holder)
        forgets = len(state.commits) == COMMITS_REMEMBERED
        if last is None and forgets and holder < max(state.commits)[0]:
            raise InDoubtError(
                f"the owner remembers the last {COMMITS_REMEMBERED} holders of a publisher, and"
                " this commit is older",
                do="read back what the transaction wrote",
            )
        decided = self.fence(producer, holder) if fence else []
        return decided, last is not None and clock <= last

    def _check_lost(self, write: Write, state: ProducerState) -> None:
        """Raises NotFoundError if a journal would end up with a part of what the transaction wrote.

        One participant may have written to a journal before it was deleted, and another to the new
        journal of that name.
        """
        winners = write.commit.participants if write.commit else ()
        joined = (self.producers.get(each.producer) for each in winners)
        parts = [state, *filter(None, joined)]
        lost = set().union(*(part.lost for part in parts))
        if not lost:
            return
        catalog = self.catalog
        written = [head.journal for head in write.docs]
        if write.commit:
            written += [journal for part in parts for journal in part.spans]
        for journal in written:
            known = catalog.journals.get(journal) or catalog.deleted.get(journal)
            if known and known.name in lost:
                raise NotFoundError(
                    f"somebody deleted journal {known.name} after this transaction wrote to it",
                    do="repeat the transaction: it creates the journal anew",
                )

    def _check_commit(
        self, producer: Producer, commit: CommitRequest, state: ProducerState
    ) -> None:
        transaction = self.transactions.get(state.transaction)
        joined = transaction.participants if transaction else set()
        if producer in joined:
            raise ProtocolError(
                f"publisher {format_producer(producer)} is a participant and cannot commit",
                do="prepare: the coordinator of the transaction commits",
            )
        for winner in commit.participants:
            if winner.producer not in joined or self.producers[winner.producer].prepared != winner:
                raise FencedError(
                    f"participant {format_producer(winner.producer)} has left the transaction or"
                    " did not prepare",
                    do="run its part again",
                )

    def _commit(
        self, producer: Producer, commit: CommitRequest, state: ProducerState
    ) -> list[Record]:
        ends = {producer: commit.clock}
        ends |= {winner.producer: winner.clock for winner in commit.participants}
        decided: list[Record] = []
        rows = self._ack_rows(ends.items())
        if (rows or commit.payload) and not state.spans:
            # Without a row, a coordinator that wrote nothing could not ask for its outcome.
            rows.append((records.NO_JOURNAL, 0, producer, commit.clock))
        if rows:
            acks = AckTable(records.ack_rows(rows), state.name, state.holder, commit.payload)
            decided.append(self._apply(acks))
        for each in ends:
            self.producers[each].lost.clear()
        return decided + self._end_participants(producer)

    def _journal_name(self, id: JournalId) -> str:
        journal = self.catalog.journals.get(id)
        return journal.name if journal else "a journal that does not exist yet"

    def _held(self, client: Client, producer: Producer, holder: Holder) -> ProducerState:
        state = self.producers.get(producer)
        if state is None or state.holder != holder or state.client != client:
            name = f" {state.name!r}" if state and state.name else ""
            raise FencedError(
                f"publisher{name} {format_producer(producer)} was taken over or lost its lease,"
                " and its open transaction was rolled back",
                do="open it again and repeat the transaction",
            )
        return state

    def _lease(self, client: Client, producer: Producer) -> Lease:
        state = self.producers.setdefault(producer, ProducerState())
        self.last_holder += 1
        state.client, state.holder = client, Holder(self.last_holder)
        return Lease(producer, state.holder, state.last_clock)

    def _end(self, producer: Producer) -> list[Record]:
        """Roll back and fence a producer and everyone that joined its transaction."""
        state = self.producers[producer]
        decided = self._roll_back([producer]) + self._end_participants(producer)
        if joined := self.transactions.get(state.transaction):
            joined.participants.discard(producer)
        if state.client != NOBODY and not state.name:
            self.idle.append(producer)
        state.client, state.holder = NOBODY, NO_HOLDER
        state.transaction, state.prepared = 0, None
        return decided

    def _end_participants(self, coordinator: Producer) -> list[Record]:
        """End its transaction, and roll back what participants still have pending."""
        state = self.producers[coordinator]
        transaction = self.transactions.get(state.transaction)
        if transaction is None or transaction.coordinator != coordinator:
            return []
        del self.transactions[state.transaction]
        state.transaction = 0
        joined = sorted(transaction.participants)
        return [record for participant in joined for record in self._end(participant)]

    def _roll_back(self, producers: Iterable[Producer]) -> list[Record]:
        producers = list(producers)
        for producer in producers:
            self.producers[producer].lost.clear()
        rows = self._ack_rows((producer, ZERO) for producer in producers)
        return [self._apply(AckTable(records.ack_rows(rows)))] if rows else []

    def _ack_rows(self, ends: Iterable[tuple[Producer, Clock]]) -> list[records.AckRow]:
        """Return one ACK for each open span, at the end of its journal."""
        rows: list[records.AckRow] = []
        heads: dict[JournalId, int] = {}
        for producer, clock in ends:
            for journal in self.producers[producer].spans:
                offset = heads.get(journal, self.catalog.journals[journal].head)
                rows.append((journal, offset, producer, clock))
                heads[journal] = offset + records.ACK_BYTES
        return rows

    def apply(self, record: Record, body_bytes: int = 0) -> None:
        """Apply a record. Nothing else changes durable state."""
        match record:
            case Docs():
                self._apply_docs(record, body_bytes)
            case AckTable():
                self._apply_acks(record)
            case PublisherOpened():
                known = self.publishers.get(record.name)
                payload = known.payload if known else b""
                self.publishers[record.name] = PublisherState(record.producer, payload)
                self.producers.setdefault(record.producer, ProducerState()).name = record.name
                self.last_holder = max(self.last_holder, record.holder)
            case Trimmed():
                pass
            case _:
                if isinstance(record, JournalsDeleted):
                    self._lose_spans(record)
                self.catalog.apply(record)

    def _lose_spans(self, deleted: JournalsDeleted) -> None:
        gone = set(deleted.journals)
        for producer in self.producers.values():
            for journal in producer.spans.keys() & gone:
                del producer.spans[journal]
                producer.lost.add(self.catalog.journals[journal].name)

    def _apply(self, record: Record, body_bytes: int = 0) -> Record:
        self.apply(record, body_bytes)
        return record

    def _apply_docs(self, docs: Docs, body_bytes: int) -> None:
        journal = self.catalog.journals.get(docs.journal)
        if docs.moved or journal is None:
            return
        journal.head = Offset(docs.offset + records.docs_bytes(body_bytes))
        state = self.producers.setdefault(docs.producer, ProducerState())
        state.last_clock = max(state.last_clock, Clock(docs.clock + docs.documents - 1))
        if docs.flags is Flags.CONTINUE:
            state.spans.setdefault(docs.journal, docs.offset)

    def _apply_acks(self, acks: AckTable) -> None:
        if acks.moved:
            return
        for journal_id, offset, producer, clock in acks.rows.tolist():
            if journal := self.catalog.journals.get(journal_id):
                journal.head = Offset(offset + records.ACK_BYTES)
            state = self.producers.setdefault(producer, ProducerState())
            state.spans.pop(journal_id, None)
            state.last_clock = max(state.last_clock, clock)
            if clock:
                if state.commits and state.commits[-1][0] == acks.holder:
                    state.commits.pop()
                state.commits.append((acks.holder, clock))
        if acks.payload and (publisher := self.publishers.get(acks.name)):
            publisher.payload = acks.payload

    def validate(self) -> None:
        """Assert the invariants that hold between decisions, once `roll_back_all` has run."""
        self.catalog.validate()
        for producer, state in self.producers.items():
            state.validate(producer)
            self._validate_links(producer, state)
        holders = [state.holder for state in self.producers.values() if state.client != NOBODY]
        assert len(set(holders)) == len(holders), "two producers have one holder"
        assert max(holders, default=NO_HOLDER) <= self.last_holder, (
            "a holder is yet to be given out"
        )
        unheld = {p for p, s in self.producers.items() if s.client == NOBODY and not s.name}
        assert len(set(self.idle)) == len(self.idle), "a producer is idle twice"
        assert set(self.idle) == unheld, "idle producers are not those that nobody holds"
        for name, publisher in self.publishers.items():
            assert self.producers[publisher.producer].name == name, f"publisher {name}"
        for number, transaction in self.transactions.items():
            linked = {p for p, state in self.producers.items() if state.transaction == number}
            assert linked == {transaction.coordinator, *transaction.participants}, "transaction"
            assert transaction.coordinator not in transaction.participants, "it joined its own"

    def _validate_links(self, producer: Producer, state: ProducerState) -> None:
        """Assert that journals, publishers and transactions know what a producer says of them."""
        who = format_producer(producer)
        for journal, begin in state.spans.items():
            assert begin < self.catalog.journals[journal].head, f"{who}: span beyond the head"
        assert not state.name or self.publishers[state.name].producer == producer, who
        assert not state.transaction or state.transaction in self.transactions, who
        if state.prepared:
            transaction = self.transactions[state.transaction]
            assert producer in transaction.participants, f"{who} prepared what it did not join"
            coordinator = self.producers[transaction.coordinator]
            assert state.client == coordinator.client, f"{who} lives by another client"
