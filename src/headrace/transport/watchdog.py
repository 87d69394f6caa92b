"""Finds silent peers, which are stopped, hang or are cut off: the network does not tell."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from headrace.errors import UsageError
from headrace.settings import ServiceSettings

logger = logging.getLogger(__name__)


class Watched(Protocol):
    @property
    def heard_at_s(self) -> float:
        """When the peer was last heard, on the monotonic clock; infinity while nobody listens."""

    def lose_silent(self) -> None:
        """End the conversation: the peer was silent for too long. Called again if it raises."""


class Watchdog:
    """Watches any number of conversations in one thread, which sleeps until one may be late."""

    def __init__(self, settings: ServiceSettings) -> None:
        if not 0 < settings.heartbeat_s <= settings.silence_s / 2:
            raise UsageError(
                f"heartbeat_s={settings.heartbeat_s} does not fit silence_s={settings.silence_s}",
                do="let at least two heartbeats fit into the silence",
            )
        self._silence_s = settings.silence_s
        self._again_s = settings.heartbeat_s
        self._watched: set[Watched] = set()
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, name="headrace-watchdog", daemon=True).start()

    def watch(self, watched: Watched) -> None:
        with self._changed:
            self._watched.add(watched)

    def forget(self, watched: Watched) -> None:
        with self._changed:
            self._watched.discard(watched)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        awake_since_s = time.monotonic()
        while True:
            next_s = self._look(awake_since_s)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, next_s - time.monotonic()):
                    return
            # This process itself was stopped or starved, and what its peers sent meanwhile is
            # still unread. So their silence counts from now.
            if (now_s := time.monotonic()) > next_s + self._silence_s / 2:
                awake_since_s = now_s

    def _look(self, awake_since_s: float) -> float:
        """Give up peers that are late, and return when the next one may be late."""
        with self._changed:
            watched = list(self._watched)
        now_s = time.monotonic()
        next_s = now_s + self._silence_s
        for each in watched:
            late_s = max(each.heard_at_s, awake_since_s) + self._silence_s
            if late_s <= now_s:
                try:
                    each.lose_silent()
                    self.forget(each)
                except Exception as error:  # noqa: BLE001  the others must still be watched
                    logger.warning("a silent peer cannot be cut off yet: %s", error)
                    next_s = min(next_s, now_s + self._again_s)
            else:
                next_s = min(next_s, late_s)
        return next_s
