"""Commands that run until they are told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
