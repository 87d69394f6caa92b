"""The thread in which an act of `headrace demo` publishes while tasks apply what it published."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

GROUPS = 20
_PAUSE_S = 0.4


class PublishingThread:
    """Publishes so many things, in GROUPS groups one after the other.

    After a group that has a gate it waits until the gate is set.
    """

    def __init__(
        self,
        publish: Callable[[int], None],
        total: int,
        gates: Mapping[int, threading.Event],
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._publish = publish
        self._total = total
        self._gates = gates
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)

    @property
    def is_done(self) -> bool:
        """True once everything is published. Raises what made the thread fail."""
        if self._failure:
            raise self._failure
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            ends = [self._total * each // GROUPS for each in range(GROUPS + 1)]
            for group in range(GROUPS):
                self._publish(ends[group + 1] - ends[group])
                if gate := self._gates.get(group):
                    gate.wait()
                if self._stopping.wait(self._pause_s):
                    return
        except BaseException as error:  # noqa: BLE001  `is_done` raises it
            self._failure = error

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for gate in self._gates.values():
                gate.set()
            self._thread.join()
