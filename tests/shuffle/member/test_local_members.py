"""LocalMembers reports member processes that end while they start."""

from __future__ import annotations

import sys

import pytest

from headrace.errors import PeerLostError
from headrace.shuffle.member import local_members
from headrace.shuffle.member.local_members import LocalMembers


def test_processes_that_end_at_once_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_members, "_CHILD", (sys.executable, "-c", "import os; os.close(0)"))
    with pytest.raises(PeerLostError, match="a member process ended while it started"):
        LocalMembers(2, processes=True)
