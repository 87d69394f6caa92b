"""Errors of a key-value store that is closed, or has failed. Pure."""

from __future__ import annotations

from headrace.errors import FencedError, HeadraceError, StorageError, UsageError
from headrace.stores.kv.contract import WriteSequence


def closed_store(where: str) -> UsageError:
    return UsageError(f"the key-value store {where} is closed", do="open it again")


def closed_snapshot() -> UsageError:
    return UsageError("a snapshot of a key-value store is closed", do="take another snapshot")


def check_written(sequence: WriteSequence, last: WriteSequence) -> None:
    """Raises UsageError if the store has not written that batch: nobody could wait for it."""
    if sequence > last:
        raise UsageError(
            f"batch {sequence} was not written; the last is {last}",
            do="wait for what write() returned",
        )


def failed_earlier(where: str, failure: HeadraceError) -> HeadraceError:
    """Return the error of every write after one that failed."""
    if isinstance(failure, FencedError):
        return FencedError(failure.what, do=failure.do)
    return StorageError(
        f"the store in {where} failed earlier: {failure.what}",
        do="mend what failed, then open the store again",
    )
