"""Every error Headrace raises, in one tree.

    HeadraceError
    ├── UsageError                the call is wrong; the workspace is as it was
    │   ├── SchemaError           a schema or DDL string that cannot be used
    │   ├── DocumentError         a document that does not fit its collection
    │   ├── NotFoundError         no collection, journal or object of that name
    │   ├── ExistsError           the name is taken by something different
    │   ├── ChangedError          a job's source or operator is not the one that it began with
    │   └── QueryError            a query of a store that cannot be read, or exceeds a limit
    ├── OutdatedError             what it was opened with has changed; opened again, it goes on
    ├── OffsetError               a position that cannot be read
    │   ├── BehindRetentionError  the documents there were removed
    │   └── AheadOfHeadError      nothing was ever written there
    ├── PublishError              a transaction that did not commit
    │   ├── FencedError           another holder took over this publisher
    │   └── ProtocolError         frames out of order: a bug in a publisher
    ├── InDoubtError              nobody knows yet whether it committed; ask before you repeat it
    ├── DataError                 bytes on disk are damaged
    │   └── DamagedOutputError    output of a map task is damaged or missing: compute it again
    ├── UnitError                 an operator failed on the rows of a unit
    │   └── RetryableError        a call failed for now: a retry may help
    ├── BudgetError               a call would cost more than the budget allows: the job pauses
    ├── StoppedError              somebody asked for a stop: what is done is kept
    ├── StorageError              a disk or object store refused (full, read-only, I/O)
    │   └── QueueFullError        a queue is over its limit, for now: a retry helps
    ├── WorkspaceError            the workspace cannot be opened or used
    │   └── VersionError          it was written by a newer Headrace
    └── TransportError            a conversation with another process failed
        ├── PeerLostError         the other side is gone or silent
        └── AccessError           a missing or wrong token or certificate

A message is one line: what happened, where, and after a semicolon what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Never

_OUTCOME_S = 30.0

REPORT = "report it to the authors of Headrace, with this line and the log of the process"
"""The remedy for what can only be a mistake in Headrace itself."""

COMMIT_ID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{12}-[0-9a-f]{16}-[0-9a-f]{16}"
    r"(?:-[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16})?\b"
)
"""Matches an id as `InDoubtError` prints it: see `journal.write.commit_id`."""


# The paths of `exchange.layout`, as errors print them.
_OUTPUT_FILE = re.compile(r"shuffle/(\d+)/(\d+)/(\d+)/(\d+)/[\w.-]+")
_OUTPUT_RECORD = re.compile(r"shuffle/(\d+)/(\d+)/[a-z]+/(\d+)-\d+")


class HeadraceError(Exception):
    """The root of all errors. `what` says what happened and where, `do` says how to mend it."""

    def __init__(self, what: str, *, do: str = "") -> None:
        super().__init__(what, do)
        self.what = what
        self.do = do

    def __str__(self) -> str:
        return f"{self.what}; {self.do}" if self.do else self.what

    def __reduce__(self) -> tuple[object, ...]:
        return _make, (type(self).__name__, self.what, self.do)


class UsageError(HeadraceError): ...


class SchemaError(UsageError): ...


class DocumentError(UsageError): ...


class NotFoundError(UsageError): ...


class ExistsError(UsageError): ...


class ChangedError(UsageError): ...


class QueryError(UsageError): ...


class OutdatedError(HeadraceError): ...


class OffsetError(HeadraceError): ...


class BehindRetentionError(OffsetError): ...


class AheadOfHeadError(OffsetError): ...


class PublishError(HeadraceError): ...


class FencedError(PublishError): ...


class ProtocolError(PublishError): ...


class CommitOutcome(StrEnum):
    """What became of a commit, or of documents that `ws.append` sent."""

    COMMITTED = "committed"
    """All documents are visible."""
    ROLLED_BACK = "rolled back"
    """No document is visible, and none ever will be."""
    PARTIAL = "partial"
    """The owner died during a `ws.append`, and only some of its documents are visible."""

    def __bool__(self) -> Never:
        raise TypeError("an outcome is not true or false: compare it with CommitOutcome.COMMITTED")


class InDoubtError(HeadraceError):
    """The publisher could not learn in time whether its commit took effect.

    This is no `PublishError`: a program that repeats what did not commit must not repeat this by
    accident. `id` names the commit for `ws.outcome`, in any process. It is empty if there is no
    commit to ask about.
    """

    def __init__(
        self, what: str, *, do: str = "", ask: Callable[[float], CommitOutcome] | None = None
    ) -> None:
        super().__init__(what, do=do)
        found = COMMIT_ID.search(what)
        self.id = found[0] if found else ""
        self._ask = ask

    def outcome(self, timeout_s: float = _OUTCOME_S) -> CommitOutcome:
        """Ask what became of the commit. Raises InDoubtError if nobody knows after `timeout_s`."""
        if self._ask is None:
            raise UsageError(
                "an InDoubtError that came from another process cannot ask for the outcome",
                do=f"call ws.outcome({self.id!r})" if self.id else self.do,
            )
        return self._ask(timeout_s)


class DataError(HeadraceError): ...


class DamagedOutputError(DataError):
    """A file of the output of a map task is damaged or missing.

    The fields say which: whoever catches it computes the map task again, as a replacement for
    `attempt`. The attempt is 0 if what is damaged is the record that tells it.
    """

    def __init__(self, what: str, *, do: str = "") -> None:
        super().__init__(what, do=do)
        part, record = _OUTPUT_FILE.search(what), _OUTPUT_RECORD.search(what)
        found = part or record
        self.file = found[0] if found else ""
        self.query_id, self.stage_id, self.map_task = (
            (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)
        )
        self.attempt = int(part[4]) if part else 0


class UnitError(HeadraceError):
    """An operator failed on rows.

    `in_doubt` is False if it is certain that the call took no effect and cost nothing.
    """

    def __init__(self, what: str, *, do: str = "", in_doubt: bool = True) -> None:
        super().__init__(what, do=do)
        self.in_doubt = in_doubt


class RetryableError(UnitError):
    """A call that may succeed later. An operator raises it to be called again.

    `retry_after_s` is the pause that a server asks for.
    """

    def __init__(
        self,
        what: str,
        *,
        do: str = "",
        in_doubt: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, do=do, in_doubt=in_doubt)
        self.retry_after_s = retry_after_s


class BudgetError(HeadraceError): ...


class StoppedError(HeadraceError): ...


class StorageError(HeadraceError): ...


class QueueFullError(StorageError): ...


class WorkspaceError(HeadraceError): ...


class VersionError(WorkspaceError): ...


class TransportError(HeadraceError): ...


class PeerLostError(TransportError): ...


class AccessError(TransportError): ...


def _tree(root: type[HeadraceError]) -> dict[str, type[HeadraceError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def _make(kind: str, what: str, do: str) -> HeadraceError:
    return from_wire(kind, what, do)


def to_wire(error: BaseException) -> tuple[str, str, str]:
    """Return an error as (kind, what, do), from which another process makes the same error."""
    if isinstance(error, HeadraceError):
        return type(error).__name__, error.what, error.do
    return "HeadraceError", f"{type(error).__name__}: {error}", REPORT


def bug(where: str, error: Exception) -> HeadraceError:
    """Wrap an error that Headrace did not foresee."""
    return HeadraceError(f"{where}: {type(error).__name__}: {error}", do=REPORT)


def from_wire(kind: str, what: str, do: str) -> HeadraceError:
    return _tree(HeadraceError).get(kind, HeadraceError)(what, do=do)
