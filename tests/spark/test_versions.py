"""A function that Spark sends runs in the version that sent it, and in no other."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.spark import versions
from headrace.spark.versions import for_executors


class Newer:
    """What another version cannot decode."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_what_is_sent_runs_in_its_own_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = for_executors(divmod, 17)
    assert sent(5) == (3, 2)
    monkeypatch.setattr(versions, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match=r"the driver runs .*, and this executor 0\.0\.0; install"):
        sent(5)


def test_the_version_is_checked_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = for_executors(print, Newer())
    with pytest.raises(ValueError, match="no number"):
        sent()
    monkeypatch.setattr(versions, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match="install the same version"):
        sent()
