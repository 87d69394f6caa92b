"""Publishers and their transactions, as users hold them."""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType
from typing import Protocol, Self

import msgspec

from headrace.errors import HeadraceError, PeerLostError, PublishError, UsageError
from headrace.journal.collection import Collection
from headrace.journal.contract import Commit, Prepared
from headrace.journal.outgoing import Documents, Outgoing, Writer
from headrace.journal.sequencer import Flags


class Desk(Protocol):
    """What a publisher needs of its workspace."""

    def resolve(self, collection: Collection | str) -> Collection: ...
    def take_writer(self, name: str) -> Writer: ...
    def give_back(self, writer: Writer) -> None:
        """To the pool, for the next anonymous publisher of this workspace."""

    def outgoing(self, writer: Writer, flags: Flags) -> Outgoing: ...
    def was_committed(self, writer: Writer, commit: Commit) -> bool:
        """Ask whoever owns the workspace now; if the answer is no, it never will be."""


class PendingCommit:
    """A commit that was sent and not yet answered."""

    def __init__(self, desk: Desk, writer: Writer, commit: Commit, sent: Future[None]) -> None:
        self._desk = desk
        self._writer = writer
        self._commit = commit
        self._sent = sent

    def done(self) -> bool:
        return self._sent.done()

    def result(self) -> None:
        """Return once committed; raise if it was rolled back. There is nothing in between."""
        try:
            self._sent.result()
        except PeerLostError as lost:
            if not self._desk.was_committed(self._writer, self._commit):
                raise PublishError(
                    f"the transaction was rolled back: {lost.what}", do="repeat it"
                ) from lost


class Transaction:
    """One commit over any number of journals. Made by a publisher; used by one thread."""

    def __init__(self, desk: Desk, writer: Writer, *, pooled: bool) -> None:
        self._desk = desk
        self._writer = writer
        self._pooled = pooled
        self._outgoing = desk.outgoing(writer, Flags.CONTINUE)
        self._participants: list[Prepared] = []
        self._number = 0
        self._open = True

    def append(self, collection: Collection | str, documents: Documents) -> int:
        """Add documents: all of them, or with an error none. Returns how many."""
        self._check_open()
        try:
            return self._outgoing.append(self._desk.resolve(collection), documents)
        except PublishError:
            self._open = False
            raise

    def invite(self) -> str:
        """What other processes need to join: pass it to `ws.join` there."""
        self._check_open()
        if not self._number:
            lease = self._writer.lease
            self._number = self._writer.journals.begin(lease.producer, lease.holder)
        return f"{self._number:016x}"

    def include(self, prepared: str) -> None:
        """Let a participant's part be committed: `prepared` is what its `prepare` returned."""
        self._check_open()
        self._participants.append(msgspec.json.decode(prepared, type=Prepared))

    def commit(self, payload: bytes = b"") -> None:
        """Make everything visible at once, and durable. `payload` is kept for the next holder."""
        self.commit_nowait(payload).result()

    def commit_nowait(self, payload: bytes = b"") -> PendingCommit:
        """Send the commit; commits of one publisher keep their order."""
        self._check_open()
        self._open = False
        last = self._outgoing.seal()
        commit = Commit(self._writer.clock.take(), tuple(self._participants), payload)
        sent = self._outgoing.send(last, commit)
        pending = PendingCommit(self._desk, self._writer, commit, sent)
        if self._pooled:
            self._desk.give_back(self._writer)
        return pending

    def rollback(self) -> None:
        """Give everything up. Nobody sees any of it."""
        if not self._open:
            return
        self._open = False
        if self._outgoing.sent or self._number:
            lease = self._writer.lease
            self._writer.journals.rollback(lease.producer, lease.holder)
        if self._pooled:
            self._desk.give_back(self._writer)

    @property
    def is_open(self) -> bool:
        return self._open

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("the transaction has ended", do="begin another")


class Publisher:
    """Writes transactions: `with publisher as tx:` is one, and there may be any number.

    With a name it is the only one of that name: opening it fences the previous holder, rolls back
    what that left open, and continues above its clocks. `payload` is what the last transaction
    under the name committed with, whoever committed it.
    """

    def __init__(self, desk: Desk, name: str = "") -> None:
        self.name = name
        self._desk = desk
        self._writer = desk.take_writer(name) if name else None
        self._transaction: Transaction | None = None

    @property
    def payload(self) -> bytes:
        return self._writer.lease.payload if self._writer else b""

    def begin(self) -> Transaction:
        if self._writer:
            return Transaction(self._desk, self._writer, pooled=False)
        return Transaction(self._desk, self._desk.take_writer(""), pooled=True)

    def close(self) -> None:
        """Give the name up. What was not committed is rolled back."""
        if self._writer:
            lease, journals = self._writer.lease, self._writer.journals
            self._writer = None
            journals.close_publisher(lease.producer, lease.holder)

    def __enter__(self) -> Transaction:
        if self._transaction:
            raise UsageError("this publisher's transaction is open", do="end it first")
        self._transaction = self.begin()
        return self._transaction

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction
        if error is None:
            if transaction.is_open:
                transaction.commit()
            return
        try:
            transaction.rollback()
        except HeadraceError as second:
            error.add_note(f"rolling back also failed: {second}")


class Participant:
    """A part of somebody else's transaction, in this process."""

    def __init__(self, desk: Desk, writer: Writer) -> None:
        self._desk = desk
        self._writer = writer
        self._outgoing = desk.outgoing(writer, Flags.CONTINUE)
        self._open = True

    def append(self, collection: Collection | str, documents: Documents) -> int:
        self._check_open()
        return self._outgoing.append(self._desk.resolve(collection), documents)

    def prepare(self) -> str:
        """Hand everything to the coordinator, which passes the result to `include`."""
        self._check_open()
        self._open = False
        self._outgoing.send(self._outgoing.seal()).result()
        lease = self._writer.lease
        prepared = Prepared(lease.producer, lease.holder, self._writer.clock.take())
        self._writer.journals.prepare(prepared)
        return msgspec.json.encode(prepared).decode()

    def abandon(self) -> None:
        """Take no part after all: what was written is rolled back."""
        if self._open:
            self._open = False
            lease = self._writer.lease
            self._writer.journals.close_publisher(lease.producer, lease.holder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abandon()

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("this participant has prepared or abandoned", do="join again")
