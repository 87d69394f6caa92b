"""Seeded random clients of an `OwnerState`, against an oracle that knows their intent.

    python -m tests.journal.local.simulator SEED [STEPS]

runs one seed again and prints every step. What the state emits is kept as the log would keep it;
a restart forgets some of the newest records, as a power failure may, and everything not durable.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from headrace.clock import CLOCK_MAX, Clock
from headrace.errors import FencedError, HeadraceError, UsageError
from headrace.ids import Holder, JournalId, Offset, Producer
from headrace.journal.collection import define
from headrace.journal.committed_documents import committed
from headrace.journal.contract import CommitRequest, DocsHead, Frame, Lease, Prepared, Write
from headrace.journal.local import records
from headrace.journal.local.producers import NOBODY, Client
from headrace.journal.local.records import (
    AckTable,
    Docs,
    JournalsCreated,
    JournalsDeleted,
    Record,
    Trimmed,
)
from headrace.journal.local.state import OwnerState
from headrace.journal.names import NAME_BYTES_MAX
from headrace.journal.sequencer import Flags
from headrace.testing.journal_oracle import DocumentId, documents

CLIENTS: list[Client] = [0, 1, 2, 3]
NAMES = ["ann", "bob"]
COLLECTIONS = ["a", "b/c"]

Shown = dict[JournalId, list[DocumentId]]


class Logged(NamedTuple):
    record: Record
    body_bytes: int
    shown: Shown
    """The documents that this record should make visible."""


@dataclass(eq=False)
class Holding:
    """What one client believes that it holds."""

    client: Client
    lease: Lease
    name: str = ""
    clock: int = 0
    pending: Shown = field(default_factory=lambda: defaultdict(list))
    lost: set[str] = field(default_factory=set)
    """The journals that somebody deleted after its transaction wrote to them."""
    transaction: int = 0
    coordinator: Holding | None = None
    joined: list[Holding] = field(default_factory=list)
    prepared: Prepared | None = None
    committed: list[tuple[Clock, AckTable]] = field(default_factory=list)
    """The clocks of its commits with their records, some of which a crash may have removed."""

    def take(self, count: int = 1) -> Clock:
        first = self.clock + 1
        self.clock = first + count - 1
        return Clock(first)

    def state_clock(self, state: OwnerState) -> Clock:
        """Return the greatest clock of the producer: it must use none at or below it again."""
        return state.producers[self.lease.producer].last_clock

    def forget_pending(self) -> None:
        self.pending.clear()
        self.lost.clear()

    @property
    def who(self) -> tuple[Client, Producer, Holder]:
        return self.client, self.lease.producer, self.lease.holder


class Simulator:
    def __init__(self, seed: int, say: Callable[[str], None] = lambda _line: None) -> None:
        self.rng = Random(seed)
        self.say = say
        self.state = OwnerState()
        self.log: list[Logged] = []
        self.live: list[Holding] = []
        self.dead: list[Holding] = []
        self.held_most = 0
        self._fresh = iter(range(1, 1 << 48))
        self._schema = define("a", pa.schema([("x", pa.int64())])).schemas

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.restart()
        self.check_journals()

    def step(self) -> None:
        # Create a few journals before anything else.
        deed = self.rng.choice(_DEEDS if self.state.catalog.journals else [Simulator.put])
        self.say(deed.__name__)
        deed(self)
        self.check_structure()

    # -- what clients do -------------------------------------------------------------------

    def put(self) -> None:
        wanted = records.CollectionPut(
            self.rng.choice(COLLECTIONS), self._schema, journals=2, retention_s=1.0
        )
        self.append_to_log(self.state.change_catalog(self.state.catalog.put_collection(wanted)))

    def delete_journal(self) -> None:
        name = self.rng.choice(list(self.state.catalog.by_name))
        gone = self.state.catalog.journal_id(name)
        self.append_to_log(self.state.change_catalog(self.state.catalog.delete_journals([name])))
        for holding in self.live:
            if holding.pending.pop(gone, None):
                holding.lost.add(name)

    def open(self) -> None:
        name = self.rng.choice(["", *NAMES])
        client = self.rng.choice(CLIENTS)
        decided, lease = self.state.open_publisher(client, name, Producer(next(self._fresh)))
        for holding in [h for h in self.live if name and h.name == name]:
            self.end(holding)
        self.append_to_log(decided)
        assert lease.payload == self.payload_of(name)
        self.hold(Holding(client, lease, name, clock=lease.clock))

    def join(self) -> None:
        if coordinator := self.pick(lambda h: h.transaction and not h.coordinator):
            client = self.rng.choice(CLIENTS)
            fresh = Producer(next(self._fresh))
            lease = self.state.join(client, coordinator.transaction, fresh)
            holding = Holding(client, lease, clock=lease.clock, coordinator=coordinator)
            coordinator.joined.append(holding)
            self.hold(holding)

    def begin(self) -> None:
        if holding := self.pick(lambda h: not h.transaction and not h.coordinator):
            holding.transaction = self.rng.getrandbits(63)
            self.state.begin(*holding.who, holding.transaction)

    def write(self) -> None:
        if holding := self.pick(lambda h: not h.prepared):
            self.do_write(holding, self.some_docs(holding), None)

    def commit(self) -> None:
        if holding := self.pick(lambda h: not h.prepared and not h.coordinator):
            docs = self.some_docs(holding) if self.rng.random() < 0.5 else []
            winners = [h.prepared for h in holding.joined if h.prepared and self.rng.random() < 0.8]
            if winners and self.rng.random() < 0.2:
                winners.append(winners[0])
            payload = self.rng.choice([b"", b"", b"payload %d" % self.rng.getrandbits(8)])
            self.do_write(holding, docs, CommitRequest(holding.take(), tuple(winners), payload))

    def prepare(self) -> None:
        if holding := self.pick(lambda h: h.coordinator and not h.prepared):
            client, producer, holder = holding.who
            holding.prepared = Prepared(producer, holder, holding.take())
            self.state.prepare(client, holding.prepared)
            assert holding.coordinator
            holding.client = holding.coordinator.client

    def rollback(self) -> None:
        if holding := self.pick(lambda h: not h.prepared):
            self.append_to_log(self.state.rollback(*holding.who))
            holding.forget_pending()
            self.end_transaction(holding)

    def close(self) -> None:
        if holding := self.pick(lambda _: True):
            self.append_to_log(self.state.close_publisher(*holding.who))
            self.end(holding)

    def lose_client(self) -> None:
        client = self.rng.choice(CLIENTS)
        self.append_to_log(self.state.client_lost(client))
        for holding in [h for h in self.live if h.client == client]:
            self.end(holding)
        assert all(p.client != client for p in self.state.producers.values())

    def ask(self) -> None:
        """Ask whether a commit whose answer was lost took effect."""
        everybody = self.live + self.dead
        if not everybody:
            return
        holding = self.rng.choice(everybody)
        _, producer, holder = holding.who
        clock, happened = Clock(holding.clock + 1), False
        if holding.committed and self.rng.random() < 0.8:
            clock, acks = self.rng.choice(holding.committed)
            happened = any(logged.record is acks for logged in self.log)
        decided, answer = self.state.was_committed(producer, holder, clock)
        self.append_to_log(decided)
        assert answer is happened
        if holding in self.live:
            self.end(holding)

    def trim(self) -> None:
        begins = [
            (id, Offset(self.rng.randint(0, journal.head)))
            for id, journal in self.state.catalog.journals.items()
        ]
        decided = self.state.trim(begins)
        self.append_to_log(decided)
        for record in decided:
            assert isinstance(record, Trimmed)
            for id, begin in record.begins:
                assert all(begin <= p.spans.get(id, begin) for p in self.state.producers.values())

    def restart(self) -> None:
        """Start a new owner after a crash, which may remove records that were not synced."""
        cut = self.rng.choice([0, 0, 1, 2, 5])
        del self.log[max(0, len(self.log) - cut) :]
        newest = self.state.last_holder
        self.state = self.replayed()
        self.state.last_holder = newest
        self.append_to_log(self.state.roll_back_all())
        for holding in list(self.live):
            self.end(holding)
        assert not any(p.spans for p in self.state.producers.values())
        assert all(p.client == NOBODY for p in self.state.producers.values())
        self.check_journals()

    # -- what clients must not do ----------------------------------------------------------

    def misbehave(self) -> None:
        """Make a wrong request: the state must refuse it and stay as it was."""
        deed = self.rng.choice(_MISDEEDS)
        self.say(f"  {deed.__name__}")
        before = repr(self.state)
        if deed(self):
            assert repr(self.state) == before, f"{deed.__name__} changed something"

    def act_as_dead(self) -> bool:
        if not self.dead:
            return False
        holding = self.rng.choice(self.dead)
        client, producer, holder = holding.who
        prepared = Prepared(producer, holder, Clock(CLOCK_MAX))
        for act in (
            lambda: self.state.write(client, Write(producer, holder), []),
            lambda: self.state.write(
                client, Write(producer, holder, (), CommitRequest(Clock(CLOCK_MAX))), []
            ),
            lambda: self.state.rollback(client, producer, holder),
            lambda: self.state.begin(client, producer, holder, 7),
            lambda: self.state.prepare(client, prepared),
            lambda: self.state.close_publisher(client, producer, holder),
        ):
            with pytest.raises(FencedError):
                act()
        if holding.transaction:
            with pytest.raises(FencedError):
                self.state.join(client, holding.transaction, Producer(1))
        assert self.state.give_up(client, producer, holder) == []
        return True

    def act_as_another_client(self) -> bool:
        if not (holding := self.pick(lambda _: True)):
            return False
        client, producer, holder = holding.who
        with pytest.raises(FencedError):
            self.state.write(client + 1, Write(producer, holder), [])
        with pytest.raises(FencedError):
            self.state.close_publisher(client, producer, Holder(holder - 1))
        return True

    def write_wrongly(self) -> bool:
        holding = self.pick(lambda h: not h.prepared)
        if not holding or not self.state.catalog.journals:
            return False
        journal = self.rng.choice(list(self.state.catalog.journals))
        good = DocsHead(journal, Clock(holding.clock + 5), 2, 0, Flags.CONTINUE)
        bad: list[tuple[Any, ...]] = [
            (journal, holding.state_clock(self.state), 1, 0, Flags.CONTINUE),
            (journal, Clock(CLOCK_MAX), 2, 0, Flags.CONTINUE),
            (journal, Clock(holding.clock + 9), 0, 0, Flags.CONTINUE),
            (journal, Clock(holding.clock + 9), records.COUNT_MAX + 1, 0, Flags.CONTINUE),
            (journal, Clock(holding.clock + 9), 1, records.SCHEMA_MAX + 1, Flags.CONTINUE),
            (journal, Clock(holding.clock + 9), 1, -1, Flags.CONTINUE),
            (journal, Clock(holding.clock + 9), 1, 0, Flags.ACK),
            (journal, Clock(holding.clock + 6), 1, 0, Flags.CONTINUE),
            (journal, Clock(holding.clock + 9), 1, 0, Flags.OUTSIDE),
            (JournalId(0), Clock(holding.clock + 9), 1, 0, Flags.CONTINUE),
        ]
        wrong = DocsHead(*self.rng.choice(bad))
        self.refused_write(holding, (good, wrong), None)
        return True

    def write_on_after_a_deletion(self) -> bool:
        """Write to a journal that lost a part of the transaction, by its old or new id."""
        if not (holding := self.pick(lambda h: h.lost and not h.prepared)):
            return False
        lost = [id for id, name in self.journal_names().items() if name in holding.lost]
        head = DocsHead(self.rng.choice(lost), Clock(holding.clock + 5), 1, 0, Flags.CONTINUE)
        self.refused_write(holding, (head,), None)
        return True

    def commit_wrongly(self) -> bool:
        if not (holding := self.pick(lambda _: True)):
            return False
        _, producer, holder = holding.who
        stranger = Prepared(Producer(1 << 47), holder, Clock(1))
        myself = Prepared(producer, holder, Clock(holding.clock + 1))
        good = Clock(holding.clock + 1)
        if holding.prepared or holding.coordinator:
            commits = [CommitRequest(good)]
        else:
            commits = [
                CommitRequest(holding.state_clock(self.state)),
                CommitRequest(Clock(CLOCK_MAX + 1)),
                CommitRequest(good, (stranger,)),
                CommitRequest(good, (myself,)),
                *(CommitRequest(good, (_other(h),)) for h in holding.joined),
            ]
        self.refused_write(holding, (), self.rng.choice(commits))
        return True

    def prepare_wrongly(self) -> bool:
        if not (holding := self.pick(lambda _: True)):
            return False
        client, producer, holder = holding.who
        clock = Clock(holding.clock + 1)
        if holding.coordinator and not holding.prepared:
            clock = holding.state_clock(self.state)
        with pytest.raises(HeadraceError, match="cannot prepare"):
            self.state.prepare(client, Prepared(producer, holder, clock))
        return True

    def ask_for_nonsense(self) -> bool:
        with pytest.raises(UsageError):
            self.state.open_publisher(0, "n" * (NAME_BYTES_MAX + 1), Producer(1))
        with pytest.raises(FencedError):
            self.state.join(0, 0, Producer(1))
        with pytest.raises(UsageError):
            self.state.change_catalog(self.state.catalog.delete_journals(["nowhere/0000"]))
        if holding := self.pick(lambda h: h.transaction):
            with pytest.raises(HeadraceError, match="has opened a transaction already"):
                self.state.begin(*holding.who, 7)
        return True

    # -- what it comes to ------------------------------------------------------------------

    def pick(self, wanted: Callable[[Holding], Any]) -> Holding | None:
        found = [holding for holding in self.live if wanted(holding)]
        return self.rng.choice(found) if found else None

    def hold(self, holding: Holding) -> None:
        self.live.append(holding)
        self.held_most = max(self.held_most, sum(not h.name for h in self.live))

    def end(self, holding: Holding) -> None:
        """Fence a holding and those that joined its transaction."""
        if holding in self.live:
            self.live.remove(holding)
            self.dead.append(holding)
            holding.forget_pending()
            if holding.coordinator:
                holding.coordinator.joined.remove(holding)
            self.end_transaction(holding)

    def end_transaction(self, holding: Holding) -> None:
        holding.transaction = 0
        for participant in list(holding.joined):
            self.end(participant)

    def journal_names(self) -> dict[JournalId, str]:
        """Return the names of journals, also of deleted ones that clients still remember."""
        catalog = self.state.catalog
        return {id: each.name for id, each in (catalog.deleted | catalog.journals).items()}

    def some_docs(self, holding: Holding) -> list[DocsHead]:
        journals = [id for id, name in self.journal_names().items() if name not in holding.lost]
        heads = []
        names = self.journal_names()
        spans = {names[id] for id in holding.pending}
        for _ in range(self.rng.randint(1, 3)):
            journal = self.rng.choice(journals) if journals else None
            if journal is None:
                break
            count = self.rng.randint(1, 3)
            holding.clock += self.rng.randint(0, 2)
            outside = names[journal] not in spans and self.rng.random() < 0.3
            flags = Flags.OUTSIDE if outside else Flags.CONTINUE
            spans |= set() if outside else {names[journal]}
            heads.append(DocsHead(journal, holding.take(count), count, 0, flags))
        return heads

    def do_write(
        self, holding: Holding, docs: list[DocsHead], commit: CommitRequest | None
    ) -> None:
        client, producer, holder = holding.who
        if commit and docs:
            commit = CommitRequest(holding.take(), commit.participants, commit.payload)
        names, by_name = self.journal_names(), set(self.state.catalog.by_name)
        decided = self.state.write(
            client,
            Write(producer, holder, tuple(docs), commit),
            [100 + i for i in range(len(docs))],
        )
        missing = {names[head.journal] for head in docs} - by_name
        if missing:
            assert isinstance(decided[0], JournalsCreated)
            assert {name for _, name in decided[0].journals} == missing
            self.append_to_log(decided[:1])
            del decided[0]
        for index, head in enumerate(docs):
            docs_record = decided[index]
            assert isinstance(docs_record, Docs)
            journal = docs_record.journal
            assert self.state.catalog.journals[journal].name == names[head.journal]
            new = [DocumentId(producer, Clock(head.clock + i)) for i in range(head.documents)]
            outside = head.flags is Flags.OUTSIDE
            if not outside:
                holding.pending[journal] += new
            self.log.append(Logged(docs_record, 100 + index, {journal: new} if outside else {}))
        if commit:
            self.note_commit(holding, commit, decided[len(docs) :])
        else:
            assert len(decided) == len(docs)

    def note_commit(self, holding: Holding, commit: CommitRequest, decided: list[Record]) -> None:
        """Check that one record has all ACKs of a transaction, and only rollbacks follow."""
        winners = [h for h in holding.joined if h.prepared in commit.participants]
        shown: Shown = defaultdict(list)
        for each in [
            holding,
            *sorted(winners, key=lambda h: commit.participants.index(h.prepared)),
        ]:
            for journal, pending in each.pending.items():
                shown[journal] += pending
            each.forget_pending()
        commits = [r for r in decided if isinstance(r, AckTable) and (r.rows["clock"] > 0).any()]
        assert len(commits) == (1 if shown or commit.payload else 0)
        if commits:
            acks = commits[0]
            assert decided[0] is acks
            assert (acks.rows["clock"] > 0).all()
            assert set(acks.rows["journal"].tolist()) - {records.NO_JOURNAL} == set(shown)
            spans = acks.rows[["journal", "producer"]].tolist()
            assert len(set(spans)) == len(spans)
            assert (acks.name, acks.payload) == (holding.name, commit.payload)
            holding.committed.append((commit.clock, acks))
            self.log.append(Logged(acks, 0, shown))
        self.append_to_log(decided[len(commits) :])
        self.end_transaction(holding)

    def refused_write(
        self, holding: Holding, docs: tuple[DocsHead, ...], commit: CommitRequest | None
    ) -> None:
        client, producer, holder = holding.who
        before = repr(self.state)
        with pytest.raises(HeadraceError):
            self.state.write(client, Write(producer, holder, docs, commit), [10] * len(docs))
        with pytest.raises(HeadraceError):
            self.state.write(client, Write(producer, holder, docs, commit), [10] * (len(docs) + 1))
        assert repr(self.state) == before

    def append_to_log(self, decided: list[Record]) -> None:
        self.log += [Logged(record, 0, {}) for record in decided]

    def payload_of(self, name: str) -> bytes:
        payloads = [r.payload for r, _, _ in self.log if isinstance(r, AckTable) and r.name == name]
        return next((p for p in reversed(payloads) if p and name), b"")

    def replayed(self) -> OwnerState:
        state = OwnerState()
        for record, body_bytes, _ in self.log:
            state.apply(record, body_bytes)
        return state

    # -- what must hold --------------------------------------------------------------------

    def check_structure(self) -> None:
        state = self.state
        state.validate()
        assert durable(self.replayed()) == durable(state)
        held = {p for p, each in state.producers.items() if each.client != NOBODY}
        assert held == {holding.lease.producer for holding in self.live}
        for holding in self.live:
            each = state.producers[holding.lease.producer]
            assert (each.client, each.holder) == (holding.client, holding.lease.holder)
            assert set(each.spans) == set(holding.pending)
        unnamed = {p for p, each in state.producers.items() if not each.name}
        assert len(unnamed) <= self.held_most
        assert len(state.producers) - len(unnamed) <= len(NAMES)
        transactions = {h.transaction: h for h in self.live if h.transaction}
        assert state.transactions.keys() == transactions.keys()
        for number, coordinator in transactions.items():
            joined = {h.lease.producer for h in coordinator.joined}
            assert state.transactions[number].participants == joined

    def check_journals(self) -> None:
        """Check that offsets have no gap, clocks ascend, and readers see what was meant."""
        seen: dict[Producer, int] = defaultdict(int)
        for record, _, _ in self.log:
            if isinstance(record, Docs):
                assert record.clock > seen[record.producer]
                seen[record.producer] = record.clock + record.documents - 1
        frames = journal_frames(self.log)
        for id, journal in self.state.catalog.journals.items():
            assert [f.offset for f in frames[id]] == [0, *(f.end for f in frames[id])][:-1] or (
                not frames[id]
            )
            assert journal.head == (frames[id][-1].end if frames[id] else 0)
            visible = [d for frame in committed(frames[id]) for d in documents(frame)]
            assert visible == [d for logged in self.log for d in logged.shown.get(id, [])]


def durable(state: OwnerState) -> dict[str, Any]:
    """Return the state that a replay of the log must restore."""
    return {
        "catalog": replace(state.catalog, deleted={}),
        "publishers": state.publishers,
        "producers": {
            producer: (each.last_clock, list(each.commits), each.spans, each.name)
            for producer, each in state.producers.items()
            if each.last_clock or each.name
        },
    }


def journal_frames(log: list[Logged]) -> dict[JournalId, list[Frame]]:
    frames: dict[JournalId, list[Frame]] = defaultdict(list)
    for record, body_bytes, _ in log:
        match record:
            case Docs():
                end = Offset(record.offset + records.docs_bytes(body_bytes))
                frames[record.journal].append(
                    Frame(
                        record.journal,
                        record.offset,
                        end,
                        record.producer,
                        record.clock,
                        record.documents,
                        record.schema,
                        record.flags,
                        b"",
                        body_bytes,
                    )
                )
            case AckTable():
                for journal, offset, producer, clock in record.rows.tolist():
                    end = Offset(offset + records.ACK_BYTES)
                    frames[journal].append(
                        Frame(journal, offset, end, producer, clock, 0, 0, Flags.ACK, b"", 0)
                    )
            case JournalsDeleted():
                for journal in record.journals:
                    frames.pop(journal, None)
    return frames


def _other(holding: Holding) -> Prepared:
    """Return a part that the participant never prepared."""
    _, producer, holder = holding.who
    return Prepared(producer, holder, Clock(holding.clock + 99))


_DEEDS: list[Callable[[Simulator], None]] = [
    *[Simulator.write] * 6,
    *[Simulator.commit] * 4,
    *[Simulator.open] * 3,
    *[Simulator.join] * 3,
    *[Simulator.prepare] * 3,
    *[Simulator.misbehave] * 4,
    Simulator.begin,
    Simulator.begin,
    Simulator.rollback,
    Simulator.close,
    Simulator.lose_client,
    Simulator.ask,
    Simulator.trim,
    Simulator.put,
    Simulator.delete_journal,
    Simulator.restart,
]
_MISDEEDS: list[Callable[[Simulator], bool]] = [
    Simulator.act_as_dead,
    Simulator.act_as_another_client,
    Simulator.write_wrongly,
    Simulator.write_on_after_a_deletion,
    Simulator.commit_wrongly,
    Simulator.prepare_wrongly,
    Simulator.ask_for_nonsense,
]


if __name__ == "__main__":
    Simulator(int(sys.argv[1]), print).run(int(sys.argv[2]) if len(sys.argv) > 2 else 120)
