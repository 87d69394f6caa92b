"""What the owner of a workspace decides about producers and transactions. Pure.

A request is checked, then turned into log records; `apply` alone changes what is durable, and
replaying the log after a crash applies the same records. They are applied when they are queued,
before they are synced: if the sync fails nothing more is accepted, and the state is built again
from what the disk has.

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
from headrace.journal.contract import (
    NO_HOLDER,
    PAYLOAD_BYTES_MAX,
    CommitRequest,
    Lease,
    Prepared,
    Write,
)
from headrace.journal.local import records
from headrace.journal.local.catalog import Catalog, CatalogChange
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

Client = int
"""A conversation with the owner; 0 is the owner's own process."""

NOBODY: Client = -1
COMMITS_REMEMBERED = 64


@dataclass(slots=True)
class ProducerState:
    last_clock: Clock = ZERO
    commits: deque[tuple[Holder, Clock]] = field(
        default_factory=lambda: deque(maxlen=COMMITS_REMEMBERED)
    )
    """Who committed it, up to which clock: tells a client whose answer was lost what became of it.
    A holder's commits keep their order, and the first that is refused ends its lease, so its
    greatest clock says it of all of them."""
    spans: dict[JournalId, Offset] = field(default_factory=dict)
    """Where in each journal its open span begins."""
    name: str = ""
    client: Client = NOBODY
    holder: Holder = NO_HOLDER
    transaction: int = 0
    """The one it coordinates or joined; 0 for none."""
    prepared: Prepared | None = None
    lost: set[str] = field(default_factory=set)
    """The journals that were deleted with an open span of it."""


@dataclass(slots=True)
class PublisherState:
    producer: Producer
    payload: bytes = b""


@dataclass(slots=True)
class OpenTransaction:
    coordinator: Producer
    participants: set[Producer] = field(default_factory=set)


@dataclass(slots=True)
class OwnerState:
    """Every method that returns records has applied them; they are to be logged in that order."""

    catalog: Catalog = field(default_factory=Catalog)
    producers: dict[Producer, ProducerState] = field(default_factory=dict)
    publishers: dict[str, PublisherState] = field(default_factory=dict)
    last_holder: int = 0
    idle: deque[Producer] = field(default_factory=deque)
    """Anonymous producers that nobody holds; the one that rested longest is given out first."""
    transactions: dict[int, OpenTransaction] = field(default_factory=dict)

    def change_catalog(self, changes: Iterable[CatalogChange]) -> list[Record]:
        return [self._apply(change) for change in changes]

    def trim(self, begins: Iterable[tuple[JournalId, Offset]]) -> list[Record]:
        """Let journals begin later, but never inside a span that is still open."""
        open_since: dict[JournalId, Offset] = {}
        for producer in self.producers.values():
            for journal, begin in producer.spans.items():
                open_since[journal] = min(begin, open_since.get(journal, begin))
        kept = [
            (journal, min(begin, open_since.get(journal, begin)))
            for journal, begin in begins
            if journal in self.catalog.journals
        ]
        return [self._apply(Trimmed(kept))] if kept else []

    def open_publisher(
        self, client: Client, name: str, fresh: Producer
    ) -> tuple[list[Record], Lease]:
        """`fresh` is a random producer, used where no known one will do."""
        check_publisher_name(name)
        if not name:
            return [], self._lease(client, self.idle.popleft() if self.idle else fresh)
        known = self.publishers.get(name) or PublisherState(fresh)
        made = self._end(known.producer) if known.producer in self.producers else []
        lease = self._lease(client, known.producer)
        made.append(self._apply(PublisherOpened(name, lease.producer, lease.holder)))
        return made, Lease(lease.producer, lease.holder, lease.clock, known.payload)

    def close_publisher(self, client: Client, producer: Producer, holder: Holder) -> list[Record]:
        self._held(client, producer, holder)
        return self._end(producer)

    def give_up(self, client: Client, producer: Producer, holder: Holder) -> list[Record]:
        """As `close_publisher`, if it is still this client's."""
        state = self.producers.get(producer)
        held = state is not None and (state.client, state.holder) == (client, holder)
        return self._end(producer) if held else []

    def client_lost(self, client: Client) -> list[Record]:
        """Roll back and fence everything that lives by this client."""
        lost = [p for p, state in self.producers.items() if state.client == client]
        return [record for producer in lost for record in self._end(producer)]

    def roll_back_all(self) -> list[Record]:
        """What a new owner begins with: no span of an earlier time stays open."""
        self.idle = deque(p for p, state in self.producers.items() if not state.name)
        return self._roll_back(self.producers)

    def write(self, client: Client, write: Write, bodies_bytes: Sequence[int]) -> list[Record]:
        """The records of a write, all or nothing; body i belongs to the i-th Docs record.

        Documents for a journal that was deleted go to the one that has its name now, which is made
        if there is none.
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
        self._check_docs(write, len(bodies_bytes), state)
        if write.commit:
            self._check_commit(write.producer, write.commit, state)
        made: list[Record] = self.change_catalog(changes)
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
            made.append(self._apply(docs, body_bytes))
        if write.commit:
            made += self._commit(write.producer, write.commit, state)
        return made

    def rollback(self, client: Client, producer: Producer, holder: Holder) -> list[Record]:
        self._held(client, producer, holder)
        return self._roll_back([producer]) + self._end_participants(producer)

    def begin(self, client: Client, producer: Producer, holder: Holder, transaction: int) -> None:
        """`transaction` is a random number that nobody can guess."""
        state = self._held(client, producer, holder)
        if state.transaction:
            raise ProtocolError("a transaction is open already", do="commit or roll it back")
        state.transaction = transaction
        self.transactions[transaction] = OpenTransaction(producer)

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
        """End a holder's lease, whoever's it is; nothing if it has ended."""
        state = self.producers.get(producer)
        return self._end(producer) if state and state.holder == holder else []

    def was_committed(
        self, producer: Producer, holder: Holder, clock: Clock, *, fence: bool = True
    ) -> tuple[list[Record], bool]:
        """Fences that holder first, so that the answer cannot change afterwards."""
        state = self.producers.get(producer)
        if state is None:
            return [], False
        last = dict(state.commits).get(holder)
        forgets = len(state.commits) == COMMITS_REMEMBERED
        if last is None and forgets and holder < max(state.commits)[0]:
            raise InDoubtError(
                f"its publisher was opened and used {COMMITS_REMEMBERED} times since, which is all"
                " that is remembered",
                do="read back what the transaction wrote",
            )
        made = self.fence(producer, holder) if fence else []
        return made, last is not None and clock <= last

    def _check_lost(self, write: Write, state: ProducerState) -> None:
        """No journal may end up with a part of what a transaction wrote to it.

        A participant may have written to one before it was deleted, and another after that.
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
                    f"journal {known.name} was deleted after this transaction wrote to it",
                    do="repeat the transaction: it makes the journal anew",
                )

    def _check_docs(self, write: Write, bodies: int, state: ProducerState) -> None:
        who = format_producer(write.producer)
        if state.prepared:
            raise ProtocolError(
                f"publisher {who} has prepared its transaction",
                do="a participant writes before it prepares",
            )
        if bodies != len(write.docs):
            raise ProtocolError(
                f"publisher {who} sent {bodies} bodies for {len(write.docs)} frames",
                do="send one for each",
            )
        last = state.last_clock
        begun: set[JournalId] = set()
        for head in write.docs:
            journal = self.catalog.journals.get(head.journal)
            name = journal.name if journal else "a journal to be made"
            fits = (
                1 <= head.documents <= records.COUNT_MAX
                and 0 <= head.schema <= records.SCHEMA_MAX
                and last < head.clock <= CLOCK_MAX - head.documents
            )
            if not fits or head.flags is Flags.ACK:
                raise ProtocolError(
                    f"publisher {who} wrote {head.documents} documents of clock {head.clock} and"
                    f" schema {head.schema} after clock {last} to {name}",
                    do="clocks of a producer must ascend, and a frame must hold documents",
                )
            if head.flags is Flags.CONTINUE:
                begun.add(head.journal)
            elif head.journal in begun or head.journal in state.spans:
                raise ProtocolError(
                    f"publisher {who} wrote outside its open transaction to {name}",
                    do="commit or roll back first",
                )
            last = Clock(head.clock + head.documents - 1)
        if write.commit and len(write.commit.payload) > PAYLOAD_BYTES_MAX:
            raise ProtocolError(
                f"publisher {who} commits with a payload of {len(write.commit.payload)} bytes",
                do=f"keep it below {PAYLOAD_BYTES_MAX}",
            )
        if write.commit and not last < write.commit.clock <= CLOCK_MAX:
            raise ProtocolError(
                f"publisher {who} acknowledges {write.commit.clock} after writing {last}",
                do="clocks of a producer must ascend",
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
                    f"participant {format_producer(winner.producer)} is not part of the"
                    " transaction any more",
                    do="it was lost or did not prepare; run its part again",
                )

    def _commit(
        self, producer: Producer, commit: CommitRequest, state: ProducerState
    ) -> list[Record]:
        ends = {producer: commit.clock}
        ends |= {winner.producer: winner.clock for winner in commit.participants}
        made: list[Record] = []
        rows = self._ack_rows(ends.items())
        if (rows or commit.payload) and not state.spans:
            # Else a coordinator that wrote nothing itself could not be told that it committed.
            rows.append((records.NO_JOURNAL, 0, producer, commit.clock))
        if rows:
            acks = AckTable(records.ack_rows(rows), state.name, state.holder, commit.payload)
            made.append(self._apply(acks))
        for each in ends:
            self.producers[each].lost.clear()
        return made + self._end_participants(producer)

    def _held(self, client: Client, producer: Producer, holder: Holder) -> ProducerState:
        state = self.producers.get(producer)
        if state is None or state.holder != holder or state.client != client:
            name = f" {state.name!r}" if state and state.name else ""
            raise FencedError(
                f"publisher{name} {format_producer(producer)} was taken over or lost its lease,"
                " and what it had pending was rolled back",
                do="open it again and repeat the transaction",
            )
        return state

    def _lease(self, client: Client, producer: Producer) -> Lease:
        state = self.producers.setdefault(producer, ProducerState())
        self.last_holder += 1
        state.client, state.holder = client, Holder(self.last_holder)
        return Lease(producer, state.holder, state.last_clock)

    def _end(self, producer: Producer) -> list[Record]:
        """Roll back and fence a producer, with all that joined its transaction."""
        state = self.producers[producer]
        made = self._roll_back([producer]) + self._end_participants(producer)
        if joined := self.transactions.get(state.transaction):
            joined.participants.discard(producer)
        if state.client != NOBODY and not state.name:
            self.idle.append(producer)
        state.client, state.holder = NOBODY, NO_HOLDER
        state.transaction, state.prepared = 0, None
        return made

    def _end_participants(self, coordinator: Producer) -> list[Record]:
        """End its transaction: whatever the participants still have pending is rolled back."""
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
        """An ACK for every open span, each at the end of its journal."""
        rows: list[records.AckRow] = []
        heads: dict[JournalId, int] = {}
        for producer, clock in ends:
            for journal in self.producers[producer].spans:
                offset = heads.get(journal, self.catalog.journals[journal].head)
                rows.append((journal, offset, producer, clock))
                heads[journal] = offset + records.ACK_BYTES
        return rows

    def apply(self, record: Record, body_bytes: int = 0) -> None:
        """Take over what a record says; the only place where durable state changes."""
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
