"""Publishers and their transactions, as users hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import msgspec

from headrace.decoders import decode_json
from headrace.errors import (
    FencedError,
    HeadraceError,
    InDoubtError,
    PeerLostError,
    PublishError,
    UsageError,
)
from headrace.journal.collection import Collection
from headrace.journal.contract import PAYLOAD_BYTES_MAX, CommitRequest, Prepared
from headrace.journal.names import check_publisher_name
from headrace.journal.sequencer import Flags
from headrace.journal.write.commit_id import CommitId, workspace_digits
from headrace.journal.write.pending_commit import (
    OutcomeInquiry,
    PendingCommit,
    interrupted,
    rolled_back,
)
from headrace.journal.write.producer_pool import ProducerPool
from headrace.journal.write.write_buffer import Documents, ProducerWriter


@contextmanager
def _ending_with_its_owner() -> Iterator[None]:
    """Raise PublishError if the owner is lost before the commit is sent.

    Such a transaction is never in doubt: the next owner rolls back whatever is there.
    """
    try:
        yield
    except (PeerLostError, InDoubtError) as lost:
        raise rolled_back(lost) from lost


class Transaction:
    """One commit over any number of journals. A publisher begins it; one thread uses it."""

    def __init__(self, pool: ProducerPool, writer: ProducerWriter, *, pooled: bool) -> None:
        self._pool = pool
        self._writer = writer
        self._pooled = pooled
        self._buffer = pool.write_buffer(writer, Flags.CONTINUE)
        self._participants: list[Prepared] = []
        self._number = 0
        self._open = True
        self._pending: PendingCommit | None = None
        """Set once the commit was sent, or may have been."""

    def append(self, collection: Collection | str, documents: Documents) -> int:
        """Add all documents and return their number; after an error none is added.

        If a stream fails after a part of it was sent, the transaction can only be rolled back.
        """
        self._check_open()
        # After this error the transaction stays open: its user must roll back what was sent.
        self._buffer.check_whole()
        try:
            with _ending_with_its_owner():
                return self._buffer.append(self._pool.resolve(collection), documents)
        except PublishError:
            self._open = False
            raise

    def invite(self) -> str:
        """Return the invitation that other processes pass to `ws.join`."""
        self._check_open()
        if not self._number:
            lease = self._writer.lease
            with _ending_with_its_owner():
                self._number = self._writer.journals.begin(lease.producer, lease.holder)
        return f"{self._number:016x}"

    def include(self, prepared: str) -> None:
        """Commit a participant's part with this transaction; its `prepare` returned `prepared`."""
        self._check_open()
        try:
            self._participants.append(decode_json(prepared, Prepared))
        except msgspec.DecodeError:
            raise UsageError(
                f"{prepared!r} is not a participant's part", do="pass what `prepare` returned"
            ) from None

    def commit(self, payload: bytes = b"") -> None:
        """Make everything durable, and visible at once. The next holder finds the `payload`.

        Raises InDoubtError if nobody can tell the outcome in time; another call asks again. After
        any other error of Headrace nothing of the transaction is there.
        """
        if self._pending and not self._pending._is_known:
            self._pending.result()
        else:
            self.commit_nowait(payload).result()

    def commit_nowait(self, payload: bytes = b"") -> PendingCommit:
        """Send the commit without waiting. Commits of one publisher keep their order.

        After an error of Headrace the commit was not sent, and the transaction is rolled back.
        """
        self._check_open()
        self._check_payload(payload)
        try:
            with _ending_with_its_owner():
                last = self._buffer.seal()
                commit = CommitRequest(
                    self._writer.clock.take(), tuple(self._participants), payload
                )
                self._pending = PendingCommit(self._inquiry(commit), interrupted())
                sent = self._buffer.send(last, commit)
                self._pending = PendingCommit(self._inquiry(commit), sent, last.heads)
        except BaseException as error:
            self._abandon_commit(error)
            raise
        self._open = False
        if self._pooled:
            self._pool.give_back_when_done(self._writer, sent)
        return self._pending

    def _abandon_commit(self, error: BaseException) -> None:
        """Roll back a commit that could not be sent, or that Ctrl-C interrupted."""
        if isinstance(error, HeadraceError):
            self._pending = None
        writer, was_broken = self._writer, self._writer.broken
        # If Ctrl-C interrupts this too, nobody uses this writer again.
        writer.broken = True
        with suppress(HeadraceError):
            is_rolled_back = self._give_up()
            if is_rolled_back and self._pending:
                self._pending._learn()
            writer.broken = was_broken or not is_rolled_back
        self._release()

    def _inquiry(self, commit: CommitRequest) -> OutcomeInquiry:
        lease = self._writer.lease
        workspace = workspace_digits(lease.workspace)
        id = CommitId(workspace, lease.producer, lease.holder, commit.clock)
        return self._pool.inquiry(id)

    def _check_payload(self, payload: bytes) -> None:
        if not isinstance(payload, bytes):
            raise UsageError(
                f"the payload is of type {type(payload).__name__}", do="encode it into bytes"
            )
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise UsageError(
                f"the payload has {len(payload)} bytes", do=f"keep it below {PAYLOAD_BYTES_MAX}"
            )
        if payload and self._pooled:
            raise UsageError(
                "the publisher has no name, so nobody could get its payload back",
                do="open the publisher with a name",
            )

    def rollback(self) -> None:
        """Give everything up: nobody ever sees any of it.

        Raises UsageError if it has committed, InDoubtError if nobody knows yet whether it has.
        """
        if self._pending:
            self._check_rolled_back(self._pending)
        elif self._open:
            self._give_up()
            self._release()

    def _check_rolled_back(self, pending: PendingCommit) -> None:
        try:
            pending.result()
        except InDoubtError:
            raise
        except HeadraceError:
            return
        raise UsageError(
            "the transaction has committed and cannot be rolled back",
            do="publish documents that undo it",
        )

    def _give_up(self) -> bool:
        """Let the owner roll back what it has. Returns False if the owner or the lease is lost."""
        writer, lease = self._writer, self._writer.lease
        if not self._buffer.messages_sent and not self._number:
            return True
        was_broken = writer.broken
        # Until the owner has rolled back, nobody may use the writer: it may have a span open.
        writer.broken = True
        self._open = False
        try:
            writer.journals.rollback(lease.producer, lease.holder)
        except (PeerLostError, FencedError):
            # The owner rolls back a publisher that loses it or its lease.
            return False
        writer.broken = was_broken
        return True

    def _release(self) -> None:
        self._open = False
        if self._pooled:
            self._pool.give_back(self._writer)

    @property
    def is_open(self) -> bool:
        return self._open and self._pending is None

    def _check_open(self) -> None:
        if not self.is_open:
            raise UsageError("the transaction has ended", do="begin another")


class Publisher:
    """Writes any number of transactions; `with publisher as tx:` writes one.

    A publisher with a name is the only one of that name: opening it fences the previous holder,
    rolls back what that left open, and continues above its clocks. `payload` is the last payload
    that anybody committed under the name before this publisher was opened.
    """

    def __init__(self, pool: ProducerPool, name: str = "") -> None:
        self.name = check_publisher_name(name)
        self._pool = pool
        self._writer = pool.take_writer(name) if name else None
        self._transaction: Transaction | None = None
        self._transaction_writer: ProducerWriter | None = None
        self._entered: Transaction | None = None
        self._closed = False

    @property
    def payload(self) -> bytes:
        return self._writer.lease.payload if self._writer else b""

    def is_lost(self) -> bool:
        """Return True if a publisher with a name has lost the owner that it was opened with.

        It asks that owner now. A publisher that is lost must be opened again.
        """
        if self._writer is None:
            return False
        try:
            self._writer.journals.journal_names([])
        except PeerLostError:
            return True
        return False

    def begin(self) -> Transaction:
        """Begin a transaction. A publisher with a name has one at a time, any other has many."""
        if self._closed:
            raise UsageError("the publisher is closed", do="open another")
        if self._writer is None:
            return self._begin_pooled()
        if self._writer.broken:
            raise FencedError(
                f"publisher {self.name!r} was refused or lost, and has ended", do="open it again"
            )
        if self._transaction and self._transaction.is_open:
            raise UsageError(
                f"a transaction of publisher {self.name!r} is open", do="commit or roll it back"
            )
        self._transaction = Transaction(self._pool, self._writer, pooled=False)
        return self._transaction

    def _begin_pooled(self) -> Transaction:
        """Begin with the producer of the last transaction while its commit is under way.

        If the owner refuses that commit, this transaction must fail too.
        """
        writer = self._pool.take_writer("", following=self._transaction_writer)
        self._transaction_writer = writer
        return Transaction(self._pool, writer, pooled=True)

    def close(self) -> None:
        """Give the name up, and roll back what is not committed."""
        self._closed = True
        if self._writer:
            lease, journals = self._writer.lease, self._writer.journals
            self._writer = None
            with suppress(PeerLostError, FencedError):
                journals.close_publisher(lease.producer, lease.holder)

    def __enter__(self) -> Transaction:
        if self._entered:
            raise UsageError("this publisher's transaction is open", do="end it first")
        self._entered = self.begin()
        return self._entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        transaction, self._entered = self._entered, None
        assert transaction
        if error is None:
            if transaction.is_open:
                transaction.commit()
            return
        if not transaction.is_open:
            return
        try:
            transaction.rollback()
        except HeadraceError as second:
            error.add_note(f"rolling back also failed: {second}")


class Participant:
    """This process's part of a transaction that another process coordinates."""

    def __init__(self, pool: ProducerPool, writer: ProducerWriter) -> None:
        self._pool = pool
        self._writer = writer
        self._buffer = pool.write_buffer(writer, Flags.CONTINUE)
        self._open = True

    def append(self, collection: Collection | str, documents: Documents) -> int:
        self._check_open()
        with _ending_with_its_owner():
            return self._buffer.append(self._pool.resolve(collection), documents)

    def prepare(self) -> str:
        """Hand everything to the coordinator, which passes the returned text to `include`."""
        self._check_open()
        self._open = False
        lease = self._writer.lease
        with _ending_with_its_owner():
            self._buffer.send(self._buffer.seal()).result()
            prepared = Prepared(lease.producer, lease.holder, self._writer.clock.take())
            self._writer.journals.prepare(prepared)
        return msgspec.json.encode(prepared).decode()

    def abandon(self) -> None:
        """Leave the transaction, and roll back what this process wrote."""
        if self._open:
            self._open = False
            lease = self._writer.lease
            with suppress(PeerLostError, FencedError):
                self._writer.journals.close_publisher(lease.producer, lease.holder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abandon()

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("this participant has prepared or abandoned", do="join again")
