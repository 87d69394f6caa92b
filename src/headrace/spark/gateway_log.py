"""Py4J's own logging: tracebacks of errors that are raised anyway.

When the JVM is gone, Py4J logs to the root logger, which prints if nobody has set up logging. The
caller gets the same error raised, as one line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import py4j

_FOLDER = str(Path(py4j.__file__).parent)
_LOGGERS = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
_lock = threading.Lock()
_entered = 0


def _is_wanted(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.pathname.startswith(_FOLDER))


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Within the block Py4J logs no traceback, in any thread. Blocks may be nested and overlap."""
    global _entered
    with _lock:
        _entered += 1
        for logger in _LOGGERS:
            # To add it again does nothing.
            logger.addFilter(_is_wanted)
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered:
                for logger in _LOGGERS:
                    logger.removeFilter(_is_wanted)
