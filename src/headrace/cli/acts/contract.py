"""What the acts of `headrace demo` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol


class Outcome(Protocol):
    """What an act did, and what it counted that must not happen; every outcome is a named tuple."""

    @property
    def is_good(self) -> bool:
        """True if the guarantees held."""

    def fields(self) -> dict[str, object]:
        """Return what is printed, by its name."""

    def verdict(self) -> str:
        """Return the line that says whether the guarantees held."""

    def _asdict(self) -> dict[str, Any]: ...


class DemoAct(ABC):
    """One act. It prints nothing to stdout but in `show`, so that its figures can be JSON."""

    @abstractmethod
    def run(self) -> Outcome:
        """Run it to its end. Ctrl-C ends it, and all that it started."""

    def show(self) -> None:  # noqa: B027  most acts have figures only
        """Print what the act found beside its figures, after `run`."""


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """Return the figures of an outcome by name, also those within others, and if it is good."""
    return _by_name(outcome) | {"is_good": outcome.is_good}


def _by_name(outcome: Any) -> dict[str, object]:
    return {
        name: _by_name(value) if hasattr(value, "_asdict") else value
        for name, value in outcome._asdict().items()
    }
