"""For processes that Spark starts: none may outlive it, whatever it is waiting for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_S = 1.0


@contextmanager
def bound_to_parent() -> Iterator[None]:
    """Meanwhile this process ends when the one that started it does, or has."""
    done = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(os.getppid(), done), name="headrace-parent", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(parent: int, done: threading.Event) -> None:
    is_done = False
    while not is_done:
        is_done = done.wait(_LOOK_S)
        if os.getppid() != parent:
            os._exit(1)
