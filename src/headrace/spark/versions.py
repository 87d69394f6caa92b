"""The driver and its executors must run the same Headrace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from headrace.errors import UsageError
from headrace.version import VERSION

T = TypeVar("T")


def for_executors(function: Callable[..., T], *arguments: Any) -> Callable[..., T]:
    """The function, with its first arguments, for Spark to send: it runs in this version only."""
    return partial(_run, VERSION, function, *arguments)


def _run(driver: str, function: Callable[..., T], *arguments: Any) -> T:
    check_version(driver)
    return function(*arguments)


def check_version(driver: str) -> None:
    """In an executor: `driver` is the VERSION there."""
    if driver != VERSION:
        raise UsageError(
            f"the driver runs Headrace {driver}, and this executor {VERSION}",
            do="install the same version everywhere",
        )
