"""Appends documents outside of transactions.

Frames become visible one by one, in the order they were sent in. If the owner is lost meanwhile,
any number of the first ones may be there: the next owner is asked which.
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
from headrace.journal.write.producer_pool import Desk
from headrace.journal.write.write_buffer import Documents, Outgoing


def append_outside(desk: Desk, collection: Collection, documents: Documents) -> int:
    """As `Workspace.append`."""
    writer = desk.take_writer("")
    outgoing = desk.outgoing(writer, Flags.OUTSIDE)
    is_whole = False
    try:
        outgoing.append(collection, documents)
        sealed = outgoing.seal()
        is_whole = True
        outgoing.send(sealed).result()
    except HeadraceError as error:
        _check_appended(desk, outgoing, error, is_whole=is_whole)
    finally:
        desk.give_back(writer)
    return outgoing.documents


def _check_appended(
    desk: Desk, outgoing: Outgoing, error: HeadraceError, *, is_whole: bool
) -> None:
    """Returns if everything is there after all; raises `error` if nothing is."""
    is_lost = isinstance(error, TransportError | InDoubtError)
    if not is_lost and is_whole and outgoing.messages_sent == 1:
        # One message is taken whole or not at all.
        raise error
    if (id := outgoing.append_id(is_whole=is_whole)) is None:
        raise _not_appended(error) if is_lost else error
    # What it wrote is asked for, which ends its lease.
    outgoing.writer.broken = True
    inquiry = desk.inquiry(id)
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
