"""Commands that run until they are told to stop."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AGAIN_S = 0.5


@contextmanager
def until_stopped() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block and are no error: what is open is closed in good order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def wait(event: threading.Event) -> None:
    """Until it is set, or a signal comes.

    A kernel may give that to any thread, and only this one acts on it: so it wakes now and then.
    """
    while not event.wait(_AGAIN_S):
        pass


def aside(work: Callable[[], None], stop: Callable[[], None], *, grace_s: float = math.inf) -> None:
    """Work in a thread of its own, and wait for it.

    Ctrl-C in the middle of a lock would leave it taken, and inside of a call to Spark would break
    the connection. So it meets the thread that waits: the work is told to stop until it has ended,
    and how it ends then is no matter. A second one gives it up; so does the end of the grace, and
    the process with it, because what hangs, perhaps in a full pipe, would hang its end, too.
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
        # It may not have begun what is to be stopped.
        while not ended.wait(_AGAIN_S):
            stop()
            if time.monotonic() > deadline:
                os._exit(0)
        raise
    if failures:
        raise failures[0]
