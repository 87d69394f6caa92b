"""Follows collections through shuffles: when one fails for a passing reason, another takes over.

The next shuffle begins where the documents end that were handed out. A follower reads a whole
checkpoint before it hands out any of it, so that point is always a checkpoint, and every document
comes once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import pyarrow as pa

from headrace.backoff import Backoff
from headrace.errors import (
    AccessError,
    HeadraceError,
    NotFoundError,
    ProtocolError,
    QueueFullError,
    TransportError,
    VersionError,
    WorkspaceError,
)
from headrace.journal.workspace import Workspace
from headrace.settings import ServiceSettings, ShuffleSettings
from headrace.shuffle.batch_spool import BatchSpool
from headrace.shuffle.binding import Binding, Source, document_schema
from headrace.shuffle.block import document_columns
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.member.local_members import opened_members
from headrace.shuffle.member.member_connections import check_addresses
from headrace.shuffle.session_client import Shuffle

_PASSING = (TransportError, WorkspaceError, QueueFullError)
"""A member or the owner of the workspace is gone or not there yet, or one journal lags so far
behind the others that a Queue cannot hold the documents that wait for it."""
_LASTING = (AccessError, VersionError)
_PASSING_WHILE_OPENING = (NotFoundError, ProtocolError)
"""When a member is lost during the opening, another one may report first that the Session is
unknown."""

_RESTARTS = 9
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 10.0
_STEADY_S = 60.0
"""A shuffle that ran this long counts as progress, whether or not it showed any documents."""
_CHECK_STOP_S = 0.5
"""A follower that waits for a checkpoint checks this often whether it should stop."""
_CHECKPOINT_DOCUMENTS = 1 << 16
"""Limits how many documents a checkpoint shows, since a follower keeps all of them at once."""

OpenMembers = Callable[[], AbstractContextManager[tuple[list[str], ServiceSettings]]]
ReadCheckpoint = Callable[[Shuffle, NextCheckpoint], Iterator[pa.RecordBatch]]
OnRestart = Callable[[HeadraceError, float], None]


def follow(
    workspace: Workspace,
    bindings: Sequence[Binding],
    members: int | Sequence[str] = 2,
    *,
    service: ServiceSettings | None = None,
    meta: bool = False,
    restarts: int = _RESTARTS,
    stop: threading.Event | None = None,
    on_restart: OnRestart | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the documents of collections, up to now and then as transactions commit, each once.

    `members` is the number of member processes to start on this machine, or the addresses of
    running members; `service` says how to reach those. `meta` adds the columns `_collection`,
    `_shard` and `_clock`.

    The iterator ends soon after `stop` is set, or when you close it. If the shuffle fails because
    a member is lost or a Queue is full, the iterator opens another one, which begins where the
    documents end that it has yielded. Before it waits for that, it calls `on_restart` with the
    error and the seconds to wait. It raises the error after `restarts` in a row without progress,
    and at once if another attempt cannot help or if the first shuffle does not open.
    """
    check_addresses(members)
    # Members are processes: whatever ends one of them, this process and the others continue.
    open_members = partial(opened_members, members, service, processes=True)
    backoff = Backoff(restarts, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
    read = partial(checkpoint_documents, meta=meta)
    follower = ShuffleFollower(workspace, bindings, open_members, read, backoff)
    return follower.batches(stop or threading.Event(), on_restart)


def checkpoint_documents(
    shuffle: Shuffle, checkpoint: NextCheckpoint, *, meta: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the documents that a checkpoint shows, member by member."""
    for member in range(shuffle.members):
        for source, batch in shuffle.read(member, checkpoint):
            yield _documents(source, member, batch, meta=meta)


def _documents(source: Source, member: int, batch: pa.RecordBatch, *, meta: bool) -> pa.RecordBatch:
    documents = document_columns(batch, document_schema(source))
    if not meta:
        return documents
    rows = batch.num_rows
    return (
        documents.append_column("_collection", pa.repeat(source.collection, rows))
        .append_column("_shard", pa.repeat(member, rows))
        .append_column("_clock", batch["_clock"])
    )


class ShuffleFollower:
    """What `follow` does, with members, reads and delays of the caller's choice."""

    def __init__(
        self,
        workspace: Workspace,
        bindings: Sequence[Binding],
        open_members: OpenMembers,
        read: ReadCheckpoint,
        backoff: Backoff,
        steady_s: float = _STEADY_S,
    ) -> None:
        self._workspace = workspace
        self._bindings = bindings
        self._open_members = open_members
        self._read = read
        self._backoff = backoff
        self._steady_s = steady_s
        self._handed_out = Checkpoint()
        self._has_opened = False
        """True once the first shuffle is open."""
        self._opened_s: float | None = None
        """When the current shuffle opened; None while it opens."""

    def batches(
        self, stop: threading.Event, on_restart: OnRestart | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        while not stop.is_set():
            try:
                yield from self._one_shuffle(stop)
            except HeadraceError as error:
                if not (self._has_opened and self._is_passing(error)):
                    raise
                delay_s = self._next_delay_s(error)
                if on_restart:
                    on_restart(error, delay_s)
                stop.wait(delay_s)

    def _one_shuffle(self, stop: threading.Event) -> Iterator[pa.RecordBatch]:
        self._opened_s = None
        with (
            self._open_members() as (addresses, service),
            Shuffle(
                self._workspace,
                self._bindings,
                addresses,
                last_commit=self._handed_out,
                settings=ShuffleSettings(report_documents=_CHECKPOINT_DOCUMENTS),
                service=service,
            ) as shuffle,
        ):
            self._has_opened = True
            self._opened_s = time.monotonic()
            while not stop.is_set():
                checkpoint = shuffle.next_checkpoint(
                    _CHECK_STOP_S, documents_max=_CHECKPOINT_DOCUMENTS, may_be_empty=True
                )
                if checkpoint:
                    yield from self._hand_out(shuffle, checkpoint)
                    shuffle.release(checkpoint)

    def _hand_out(self, shuffle: Shuffle, checkpoint: NextCheckpoint) -> Iterator[pa.RecordBatch]:
        with BatchSpool() as spool:
            for batch in self._read(shuffle, checkpoint):
                spool.put(batch)
            yield from spool.batches()
        self._handed_out = self._handed_out.merge(checkpoint.delta)
        self._backoff.reset()

    def _is_passing(self, error: HeadraceError) -> bool:
        if self._opened_s is None and isinstance(error, _PASSING_WHILE_OPENING):
            return True
        return isinstance(error, _PASSING) and not isinstance(error, _LASTING)

    def _next_delay_s(self, error: HeadraceError) -> float:
        """Return how long to wait before the next shuffle, or raise the error to give up."""
        if self._opened_s is not None and time.monotonic() - self._opened_s >= self._steady_s:
            self._backoff.reset()
        delay_s = self._backoff.next_delay_s()
        if delay_s is None:
            what = f"given up after {self._backoff.retries + 1} failures in a row: {error.what}"
            raise type(error)(what, do=error.do) from error
        return delay_s
