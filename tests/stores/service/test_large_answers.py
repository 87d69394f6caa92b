"""Answers that no message holds are refused, and nobody waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.transport import message
from tests.stores.service.row_store import AskRow, open_rows, some_rows


def test_a_caller_learns_that_the_answer_is_too_large(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_rows(place) as owner, open_rows(place, may_own=False) as store:
        owner.flush(owner.write(some_rows("a")))
        monkeypatch.setattr(owner.owner, "ask", lambda request: b"x" * 5000)
        monkeypatch.setattr(message, "MESSAGE_BYTES_MAX", 4000)
        with pytest.raises(UsageError, match=r"message of \d+ bytes exceeds 4000"):
            store.ask(AskRow("a"))
        assert store.stat() == {"rows": 1}
