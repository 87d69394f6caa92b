"""The driver and its executors must run the same Headrace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pyspark import cloudpickle

from headrace.errors import UsageError
from headrace.version import VERSION

T = TypeVar("T")


def for_executors(function: Callable[..., T], *arguments: Any) -> Callable[..., T]:
    """The function, with its first arguments, for Spark to send: it runs in this version only.

    As bytes: an executor of another version must be told so before it decodes anything.
    """
    encoded = cloudpickle.dumps((function, arguments))  # type: ignore[no-untyped-call]
    return partial(_run, VERSION, encoded)


def _run(driver: str, encoded: bytes, *more: Any) -> Any:
    check_version(driver)
    function, arguments = cloudpickle.loads(encoded)
    return function(*arguments, *more)


def check_version(driver: str) -> None:
    """In an executor: `driver` is the VERSION there."""
    if driver != VERSION:
        raise UsageError(
            f"the driver runs Headrace {driver}, and this executor {VERSION}",
            do="install the same version everywhere",
        )
