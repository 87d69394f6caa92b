"""Errors that say whose they are."""

from __future__ import annotations

from headrace.errors import HeadraceError


def named(error: HeadraceError, whose: str) -> HeadraceError:
    """The same error, with the name of the one it came from."""
    return type(error)(f"{whose}: {error.what}", do=error.do)


def bug(error: Exception) -> HeadraceError:
    """What should never happen, as an error that can be told."""
    return HeadraceError(f"{type(error).__name__}: {error}", do="this is a bug; please report it")
