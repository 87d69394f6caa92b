"""Journals as they stood at one moment, for a Session that reads those and nothing later."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.journal.contract import Changes, JournalInfo


class CutWatch:
    """A watch that shows the journals of a cut, each up to its head, and never sees a change."""

    def __init__(self, cut: Sequence[JournalInfo]) -> None:
        self._cut = list(cut)
        self._shown = False
        self._closed = threading.Event()

    def next(self, timeout_s: float) -> Changes:
        if not self._shown:
            self._shown = True
            return Changes(self._cut, [], {})
        self._closed.wait(timeout_s)
        return Changes([], [], {})

    def close(self) -> None:
        self._closed.set()
