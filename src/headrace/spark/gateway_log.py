"""Silences the tracebacks that Py4J and PySpark print when the JVM is gone.

Py4J logs to the root logger, which prints if the program has not set up logging. PySpark's server
of accumulators prints when the JVM's connection to it ends. The caller gets an error of one line
instead.
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
    """Keep Py4J from logging tracebacks, in all threads. Blocks may be nested and may overlap."""
    global _entered
    with _lock:
        _entered += 1
        for logger in _LOGGERS:
            # Adding a filter a second time does nothing.
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
    """Keep Py4J from logging tracebacks in this thread from now on.

    Py4J logs what a callback raised after the callback has returned. The run may be over by then.
    """
    _thread.is_silent = True
    for logger in _LOGGERS:
        logger.addFilter(_is_wanted_of_thread)


def silence_accumulators(spark: SparkSession) -> None:
    """Keep PySpark's server of accumulators from printing when the JVM's connection ends."""
    server = spark.sparkContext._accumulatorServer
    if server is not None:
        server.handle_error = MethodType(_handle_error, server)  # type: ignore[method-assign]


def _handle_error(server: BaseServer, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exception(), EOFError | ConnectionError):
        type(server).handle_error(server, request, client_address)
