"""Measures how far a task is behind its sources."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from headrace.errors import HeadraceError
from headrace.journal.contract import Changes, Watch
from headrace.journal.workspace import Workspace
from headrace.shuffle import Binding, Checkpoint
from headrace.shuffle.binding import resolve
from headrace.shuffle.lag import Lag


class LagWatch:
    """Watches the sources of a task. Any thread may use it."""

    def __init__(
        self, workspace: Workspace, bindings: Sequence[Binding], checkpoint: Checkpoint
    ) -> None:
        collections = {each.name: each for each in workspace.collections()}
        self._workspace = workspace
        sources = resolve(bindings, collections, {})
        self._selectors = [source.selector for source in sources.all]
        self._lag = Lag(sources, checkpoint)
        self._watch: Watch | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def apply(self, delta: Checkpoint) -> None:
        with self._lock:
            self._lag.apply(delta)

    def bytes(self) -> int:
        """Return how many bytes the sources have beyond the checkpoint.

        If the owner of the journals does not answer, or this is closed, return what was seen last.
        """
        with self._lock:
            try:
                if not self._is_closed:
                    self._look()
            except HeadraceError:
                self._close()
            return self._lag.bytes

    def _look(self) -> None:
        if self._watch is None:
            self._watch = self._workspace.watch(*self._selectors)
            listed = self._watch.next(0)
            self._lag.forget_journals()
            self._lag.change(listed)
        while changes := self._watch.next(0):
            self._lag.change(changes)

    def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch:
            watch.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def behind_bytes(
    workspace: Workspace, bindings: Sequence[Binding], checkpoint: Checkpoint
) -> int | None:
    """Return how many bytes the sources have beyond a checkpoint; None if a source has changed."""
    try:
        collections = {each.name: each for each in workspace.collections()}
        lag = Lag(resolve(bindings, collections, {}), checkpoint)
    except HeadraceError:
        return None
    lag.change(Changes(workspace.journals(), [], {}))
    return lag.bytes
