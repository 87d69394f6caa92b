"""The owner's maintenance: applies retention, saves index snapshots, rewrites old segments."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.journal.local.owner import Owner
from headrace.journal.local.retention import overdue, worth_rewriting
from headrace.log import Segment
from headrace.settings import MIB, JournalSettings

logger = logging.getLogger(__name__)

_SNAPSHOT_EVERY_BYTES = 64 * MIB
_SNAPSHOT_ON_CLOSE_BYTES = 4 * MIB
_MOVE_AT_ONCE = 256


class Maintenance:
    """Runs in a thread of its own, or one round at a time through `run_round`."""

    def __init__(
        self, owner: Owner, settings: JournalSettings, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._now_ns = now_ns
        positions = owner.snapshots.positions()
        self._snapshot_position = positions[-1] if positions else 0
        self._snapshot_bytes = 0
        self._considered: tuple[int, int] | None = None
        """The state of the index and the snapshots at the last rewriting, which depends on nothing
        else."""
        self._running = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and save a snapshot if the next opening would otherwise replay much."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._running:
            if self._unsnapshotted() > _SNAPSHOT_ON_CLOSE_BYTES:
                self.save_snapshot()

    def run_round(self) -> None:
        """Run one round of everything."""
        with self._running:
            self._run_round()

    def _run_round(self) -> None:
        self._apply_retention()
        if self._unsnapshotted() > max(_SNAPSHOT_EVERY_BYTES, 4 * self._snapshot_bytes):
            self.save_snapshot()
        covered = self._owner.snapshots.covered()
        present = self._owner.with_index(lambda index: index.shrinks), covered
        if present != self._considered:
            self._rewrite(covered)
            self._considered = present

    def save_snapshot(self) -> None:
        position = self._owner.log.synced_end
        self._snapshot_bytes = self._owner.save_snapshot()
        self._snapshot_position = position

    def _run(self) -> None:
        logged = ""
        while not self._stop.wait(self._settings.keeper_interval_s):
            try:
                self.run_round()
                logged = ""
            except (HeadraceError, OSError) as error:
                if str(error) != logged:
                    logger.error("maintenance failed, and will be tried again: %s", error)
                logged = str(error)

    def _unsnapshotted(self) -> int:
        return self._owner.log.synced_end - self._snapshot_position

    def _apply_retention(self) -> None:
        limited = {
            collection.name: collection
            for collection in self._owner.collections()
            if collection.retention_s is not None or collection.retention_bytes is not None
        }
        if not limited:
            return
        now_ns = self._now_ns()
        if begins := self._owner.with_index(lambda index: overdue(index, limited, now_ns)):
            self._owner.trim(begins)

    def _rewrite(self, covered: int) -> None:
        segments = self._owner.log.segments()
        share = self._settings.rewrite_below
        for segment in self._owner.with_index(
            lambda index: worth_rewriting(segments, index, covered, share)
        ):
            if self._stop.is_set():
                return
            self._move_out(segment)
            self._owner.log.drop(segment)

    def _move_out(self, segment: Segment) -> None:
        held = self._owner.with_index(lambda index: index.held_within(*segment))
        for first in range(0, len(held), _MOVE_AT_ONCE):
            positions = held[first : first + _MOVE_AT_ONCE]
            self._owner.write_moved([self._owner.log.read(position) for position in positions])
