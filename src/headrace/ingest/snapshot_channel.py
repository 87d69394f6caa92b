"""The newest snapshot of a coordinator, for all readers."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic

from headrace.errors import HeadraceError
from headrace.ingest.contract import Epoch, S
from headrace.ingest.write_queue import same_error


@dataclass(frozen=True, slots=True)
class PublishedSnapshot(Generic[S]):
    snapshot: S
    epoch: Epoch
    """The snapshot shows every write up to this one, and none after it."""


class SnapshotChannel(Generic[S]):
    """Holds one snapshot, so that no two readers find different ones at the same time.

    It keeps no older snapshot: one that no reader holds is freed when the next one comes.
    """

    def __init__(self, snapshot: S) -> None:
        self.newest = PublishedSnapshot(snapshot, Epoch(0))
        """Replaced as a whole: whoever reads it gets a snapshot with its epoch."""
        self._lock = threading.Lock()
        self._next: Future[None] | None = None
        self._end: HeadraceError | None = None

    def publish(self, snapshot: S, epoch: Epoch) -> None:
        with self._lock:
            self.newest = PublishedSnapshot(snapshot, epoch)
            self._tell()

    def end(self, error: HeadraceError) -> None:
        """Tell all who wait that no other snapshot will come. The first error counts."""
        with self._lock:
            if self._end is None:
                self._end = error
                self._tell()

    def after(self, epoch: Epoch) -> Future[None]:
        """Return what is done when the newest snapshot shows more than that epoch.

        Raises the error that ended the coordinator, if there is no such snapshot.
        """
        with self._lock:
            if self.newest.epoch > epoch:
                done: Future[Any] = Future()
                done.set_result(None)
                return done
            if self._end is not None:
                raise same_error(self._end)
            if self._next is None:
                self._next = Future()
                self._next.set_running_or_notify_cancel()  # nobody who waits can cancel it
            return self._next

    def _tell(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None
