"""What Headrace does in the Python processes that Spark starts: workers, and processes of sources.

- They run the version of Headrace that the driver runs, or refuse to work.
- They end when the process that started them ends, whatever they are waiting for.
- An error of Headrace reaches the user as its message alone, without a traceback.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from headrace.errors import HeadraceError, UsageError
from headrace.version import VERSION

T = TypeVar("T")

_LOOK_S = 1.0
_WORKER = "SPARK_PYTHON_RUNTIME"
"""Spark sets this variable in the environment of its Python workers."""
_HIDE = "SPARK_HIDE_TRACEBACK"


def for_executors(function: Callable[..., T], *arguments: Any) -> Callable[..., T]:
    """Return the function with its first arguments, for Spark to send to executors.

    It is sent as bytes, because an executor of another version must refuse before it decodes.
    """
    encoded = cloudpickle.dumps((function, arguments))  # type: ignore[no-untyped-call]
    return partial(_call, VERSION, encoded)


def _call(driver: str, encoded: bytes, *more: Any) -> Any:
    check_version(driver)
    function, arguments = cloudpickle.loads(encoded)
    return function(*arguments, *more)


def check_version(driver: str) -> None:
    """Raise UsageError in an executor if the driver runs another version."""
    if driver != VERSION:
        raise UsageError(
            f"the driver runs Headrace {driver}, and this executor {VERSION}",
            do="install the same version everywhere",
        )


class EncodedPartition(InputPartition):
    """What the driver tells an executor to read.

    It is sent as bytes, because an executor of another version must refuse before it decodes.
    """

    def __init__(self, *encoded: bytes) -> None:
        self._encoded = encoded
        self._version = VERSION

    def __repr__(self) -> str:
        return f"EncodedPartition({sum(map(len, self._encoded))} bytes)"

    def open(self) -> tuple[bytes, ...]:
        """Return the bytes, in an executor."""
        check_version(self._version)
        return self._encoded


@contextmanager
def bound_to_parent() -> Iterator[None]:
    """Within the block, end this process when the process that started it has ended."""
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


@contextmanager
def without_traceback() -> Iterator[None]:
    """Let an error of Headrace that the block raises in a worker reach the user as its message.

    Spark reads the variable when it passes the error on, and then the worker ends. So the variable
    affects nothing else that the worker does.
    """
    try:
        yield
    except HeadraceError:
        if _WORKER in os.environ:
            os.environ[_HIDE] = "1"
        raise
