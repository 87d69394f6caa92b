"""A function that Spark sends runs in the version that sent it, and in no other."""

from __future__ import annotations

import pytest

from headrace.errors import UsageError
from headrace.spark import versions
from headrace.spark.versions import for_executors


def test_what_is_sent_runs_in_its_own_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = for_executors(divmod, 17)
    assert sent(5) == (3, 2)
    monkeypatch.setattr(versions, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match=r"the driver runs .*, and this executor 0\.0\.0; install"):
        sent(5)
