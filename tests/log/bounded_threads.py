"""Runs threads in tests with a time limit, and raises their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.log import Log


def run_all(work: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(each: Callable[[], None]) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    assert not errors


class Holding:
    """Keeps the writer thread busy in a callback until it is released."""

    def __init__(self, log: Log) -> None:
        self._busy, self._let_go = threading.Event(), threading.Event()
        log.append([], self._hold)
        assert self._busy.wait(30)

    def _hold(self, *_: object) -> None:
        self._busy.set()
        assert self._let_go.wait(30)

    def let_go(self) -> None:
        self._let_go.set()
