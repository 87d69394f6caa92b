"""Tracebacks that Py4J and PySpark print by themselves when the JVM is gone.

Py4J logs to the root logger, which prints if nobody has set up logging. PySpark's server of
accumulators prints when the JVM's connection to it ends. An error tells the caller, in one line.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import BaseServer
from types import MethodType
from typing import Any

import py4j
from pyspark.sql import SparkSession

_FOLDER = str(Path(py4j.__file__).parent)
_LOGGERS = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
_lock = threading.Lock()
_entered = 0
_thread = threading.local()


def _is_wanted(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.pathname.startswith(_FOLDER))


def _is_wanted_of_thread(record: logging.LogRecord) -> bool:
    return not getattr(_thread, "is_silent", False) or _is_wanted(record)


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


def silence_thread() -> None:
    """Py4J logs no more tracebacks in this thread, whose connection ended with the JVM.

    Py4J logs what a callback raised once the callback has returned; the run may be over by then.
    """
    _thread.is_silent = True
    for logger in _LOGGERS:
        logger.addFilter(_is_wanted_of_thread)


def silence_accumulators(spark: SparkSession) -> None:
    """From now on their server prints nothing when the JVM's connection ends."""
    server = spark.sparkContext._accumulatorServer
    if server is not None:
        server.handle_error = MethodType(_handle_error, server)  # type: ignore[method-assign]


def _handle_error(server: BaseServer, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exception(), EOFError | ConnectionError):
        type(server).handle_error(server, request, client_address)
