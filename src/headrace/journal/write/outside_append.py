"""Appends documents outside of transactions.

Frames become visible one by one, in the order in which they were sent. If the owner is lost
meanwhile, any number of the first frames may be there: the publisher asks the next owner.
"""

from __future__ import annotations

from headrace.errors import (
    CommitOutcome,
    HeadraceError,
    InDoubtError,
    PublishError,
    TransportError,
)
from headrace.journal.collection import Collection
from headrace.journal.sequencer import Flags
from headrace.journal.write.producer_pool import ProducerPool
from headrace.journal.write.write_buffer import Documents, WriteBuffer


def append_outside(pool: ProducerPool, collection: Collection, documents: Documents) -> int:
    """Do what `Workspace.append` promises."""
    writer = pool.take_writer("")
    buffer = pool.write_buffer(writer, Flags.OUTSIDE)
    is_whole = False
    try:
        buffer.append(collection, documents)
        sealed = buffer.seal()
        is_whole = True
        buffer.send(sealed).result()
    except HeadraceError as error:
        _check_appended(pool, buffer, error, is_whole=is_whole)
    finally:
        pool.give_back(writer)
    return buffer.documents


def _check_appended(
    pool: ProducerPool, buffer: WriteBuffer, error: HeadraceError, *, is_whole: bool
) -> None:
    """Return if all documents are there after all; raise `error` if none is."""
    is_lost = isinstance(error, TransportError | InDoubtError)
    if not is_lost and is_whole and buffer.messages_sent == 1:
        # The owner takes one message whole or not at all.
        raise error
    if (id := buffer.append_id(is_whole=is_whole)) is None:
        raise _not_appended(error) if is_lost else error
    # Asking what became of the append ends its lease.
    buffer.writer.broken = True
    inquiry = pool.inquiry(id)
    try:
        outcome = inquiry.ask()
    except HeadraceError as cause:
        raise inquiry.in_doubt(cause) from error
    if outcome is CommitOutcome.PARTIAL:
        raise InDoubtError(
            f"append {id} was broken off, and only some of its documents are there: {error.what}",
            do="read back what is there and append the rest; a transaction is never partial",
            ask=inquiry.outcome,
        ) from error
    if outcome is CommitOutcome.ROLLED_BACK:
        raise _not_appended(error) if is_lost else error


def _not_appended(error: HeadraceError) -> PublishError:
    return PublishError(f"nothing was appended: {error.what}", do="append it again")
