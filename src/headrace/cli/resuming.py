"""Following through a shuffle whose Sessions may fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import pyarrow as pa

import headrace as hr
from headrace.cli.output import print_note
from headrace.cli.spool import Spool
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
from headrace.settings import ServiceSettings

_PASSING = (TransportError, WorkspaceError, QueueFullError)
"""Somebody is gone, or is just about to come: a member, or the owner of the workspace. Or a journal
lags so far behind the others that a Queue cannot hold what waits for it."""
_LASTING = (AccessError, VersionError)
_PASSING_WHILE_OPENING = (NotFoundError, ProtocolError)
"""When a member is lost meanwhile, another may be the first to tell that there is no Session."""

_LOOK_S = 0.5
_DOCUMENTS_MAX = 1 << 16
"""About how many a checkpoint shows: none is printed before all of them are read."""

OpenMembers = Callable[[], AbstractContextManager[tuple[list[str], ServiceSettings]]]
ReadCheckpoint = Callable[[hr.Shuffle, hr.NextCheckpoint], Iterator[pa.RecordBatch]]


class Patience(NamedTuple):
    """With failures that follow each other."""

    failures_max: int = 10
    wait_s: float = 0.1
    wait_s_max: float = 10.0
    steady_s: float = 60.0
    """A Session that stood for this long is a success, whether or not there was anything new."""

    def after(self, failures: int) -> float:
        """How long to wait after so many of them: twice as long each time."""
        return min(self.wait_s_max, self.wait_s * 2.0 ** (failures - 1))


class Sessions:
    """The committed documents up to now, and then those of every transaction that commits.

    A Session that fails for a passing reason is followed by another, with members opened anew. It
    begins where the documents end that were handed out. That place is always a checkpoint, since
    none is handed out before all of it is read: every document comes once.

    The first Session must open: what is wrong with it from the beginning is told at once.
    """

    def __init__(
        self,
        ws: hr.Workspace,
        bindings: Sequence[hr.Binding],
        open_members: OpenMembers,
        read: ReadCheckpoint,
        stopping: threading.Event,
        patience: Patience | None = None,
    ) -> None:
        self._ws = ws
        self._bindings = bindings
        self._open_members = open_members
        self._read = read
        self._stopping = stopping
        self._patience = patience or Patience()
        self._handed_out = hr.Checkpoint()
        self._failures = 0
        self._opened_before = False
        self._opened_s: float | None = None

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Until it is told to stop."""
        while not self._stopping.is_set():
            try:
                yield from self._session()
            except HeadraceError as error:
                if not (self._opened_before and self._is_passing(error)):
                    raise
                self._bear(error)

    def _session(self) -> Iterator[pa.RecordBatch]:
        self._opened_s = None
        with (
            self._open_members() as (addresses, service),
            hr.Shuffle(
                self._ws,
                self._bindings,
                addresses,
                last_commit=self._handed_out,
                settings=hr.ShuffleSettings(report_documents=_DOCUMENTS_MAX),
                service=service,
            ) as shuffle,
        ):
            self._opened_before = True
            self._opened_s = time.monotonic()
            while not self._stopping.is_set():
                checkpoint = shuffle.next_checkpoint(
                    _LOOK_S, documents_max=_DOCUMENTS_MAX, may_be_empty=True
                )
                if checkpoint:
                    yield from self._whole(shuffle, checkpoint)
                    shuffle.release(checkpoint)

    def _whole(
        self, shuffle: hr.Shuffle, checkpoint: hr.NextCheckpoint
    ) -> Iterator[pa.RecordBatch]:
        with Spool() as spool:
            for batch in self._read(shuffle, checkpoint):
                spool.put(batch)
            yield from spool.batches()
        self._handed_out = self._handed_out.merge(checkpoint.delta)
        self._failures = 0

    def _is_passing(self, error: HeadraceError) -> bool:
        if self._opened_s is None and isinstance(error, _PASSING_WHILE_OPENING):
            return True
        return isinstance(error, _PASSING) and not isinstance(error, _LASTING)

    def _bear(self, error: HeadraceError) -> None:
        """Tell of a failure and wait a little, or give up."""
        steady_s = self._patience.steady_s
        if self._opened_s is not None and time.monotonic() - self._opened_s >= steady_s:
            self._failures = 0
        self._failures += 1
        if self._failures >= self._patience.failures_max:
            what = f"given up after {self._failures} failures in a row: {error.what}"
            raise type(error)(what, do=error.do) from error
        wait_s = self._patience.after(self._failures)
        print_note(f"{error.what}; reading on in {wait_s:g} s from where it was")
        self._stopping.wait(wait_s)
