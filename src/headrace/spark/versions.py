"""The driver and its executors must run the same Headrace."""

from __future__ import annotations

from headrace.errors import UsageError
from headrace.version import VERSION


def check_version(driver: str) -> None:
    """In an executor: `driver` is the VERSION there."""
    if driver != VERSION:
        raise UsageError(
            f"the driver runs Headrace {driver}, and this executor {VERSION}",
            do="install the same version everywhere",
        )
