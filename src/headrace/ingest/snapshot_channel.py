"""The newest snapshot of a coordinator, for all readers."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic

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
        self._waiting: set[Future[None]] = set()
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

        Call `forget` when nobody waits for it any more. Raises the error that ended the
        coordinator, if there is no such snapshot.
        """
        told: Future[None] = Future()
        with self._lock:
            if self.newest.epoch > epoch:
                told.set_result(None)
                return told
            if self._end is not None:
                raise same_error(self._end)
            told.set_running_or_notify_cancel()  # nobody who waits can cancel it
            self._waiting.add(told)
        return told

    def forget(self, told: Future[None]) -> None:
        """Keep nothing of somebody who gave up, or was told."""
        with self._lock:
            self._waiting.discard(told)

    def _tell(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for told in waiting:
            told.set_result(None)
