"""Ctrl-C and SIGTERM for commands that run until somebody stops them."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WAKE_S = 0.5


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block without an error, after it has closed what it opened."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def wait(event: threading.Event) -> None:
    """Wait until the event is set or a signal arrives.

    The kernel may give a signal to any thread, and Python acts on it in the main thread only. So
    the main thread wakes now and then.
    """
    while not event.wait(_WAKE_S):
        pass


def run_aside(
    work: Callable[[], None], stop: Callable[[], None], *, grace_s: float = math.inf
) -> None:
    """Run `work` in a thread of its own, and wait for it to end.

    Ctrl-C inside of a lock would leave the lock taken, and inside of a call to Spark it would break
    the connection. So it interrupts the thread that waits, which calls `stop` until the work has
    ended, and ignores how the work ended. A second Ctrl-C gives the work up. If the work has not
    ended after `grace_s`, the process exits at once, because what hangs, perhaps in a full pipe,
    would also hang a normal exit.
    """
    failures: list[BaseException] = []
    ended = threading.Event()

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised by the thread that waits
            failures.append(error)
        ended.set()

    threading.Thread(target=do, name="headrace-work", daemon=True).start()
    try:
        wait(ended)
    except KeyboardInterrupt:
        deadline = time.monotonic() + grace_s
        stop()
        # The work may not have started what `stop` has to stop.
        while not ended.wait(_WAKE_S):
            stop()
            if time.monotonic() > deadline:
                os._exit(0)
        raise
    if failures:
        raise failures[0]
