"""The owner's housekeeping: retention, index snapshots, rewriting of old segments."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.journal.local.index import Index
from headrace.journal.local.owner import Owner
from headrace.journal.local.retention import overdue, worth_rewriting
from headrace.log import Segment
from headrace.settings import MIB, JournalSettings

logger = logging.getLogger(__name__)

_SNAPSHOT_EVERY_BYTES = 64 * MIB
_SNAPSHOT_ON_CLOSE_BYTES = 4 * MIB
_MOVE_AT_ONCE = 256


class Keeper:
    """Runs in a thread of its own, or step by step through `keep`."""

    def __init__(
        self, owner: Owner, settings: JournalSettings, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._now_ns = now_ns
        positions = owner.snapshots.positions()
        self._snapshot_position = positions[-1] if positions else 0
        self._snapshot_bytes = 0
        self._shrunk = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and leave a snapshot if the next opening would otherwise replay much."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._unsnapshotted() > _SNAPSHOT_ON_CLOSE_BYTES:
            self._owner.save_snapshot()

    def keep(self) -> None:
        """One round of everything."""
        self._apply_retention()
        if self._unsnapshotted() > max(_SNAPSHOT_EVERY_BYTES, 4 * self._snapshot_bytes):
            self.save_snapshot()
        if self._shrunk:
            self._shrunk = self._rewrite()

    def save_snapshot(self) -> None:
        self._snapshot_position = self._owner.log.synced_end
        self._snapshot_bytes = self._owner.save_snapshot()
        self._shrunk = True

    def _run(self) -> None:
        while not self._stop.wait(self._settings.keeper_interval_s):
            try:
                self.keep()
            except HeadraceError:
                logger.exception("housekeeping failed; trying again")

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
            self._shrunk = True

    def _rewrite(self) -> bool:
        """Rewrite what is worth it; returns whether more may become so without a change."""
        segments = self._owner.log.segments()
        covered = self._owner.snapshots.covered()
        share = self._settings.rewrite_below
        for segment in self._owner.with_index(
            lambda index: worth_rewriting(segments, index, covered, share)
        ):
            self._move_out(segment)
            self._owner.log.drop(segment)
        return bool(segments) and covered < segments[-1].base

    def _move_out(self, segment: Segment) -> None:
        def positions(index: Index) -> list[int]:
            held = {
                position
                for journal in index.journals.values()
                for position in journal.positions
                if segment.base <= position < segment.end
            }
            return sorted(held)

        held = self._owner.with_index(positions)
        for at in range(0, len(held), _MOVE_AT_ONCE):
            some = held[at : at + _MOVE_AT_ONCE]
            self._owner.write_moved([self._owner.log.read(position) for position in some])
