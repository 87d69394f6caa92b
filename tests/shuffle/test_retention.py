"""Retention that overtakes a Session while it runs."""

from __future__ import annotations

import pytest

from headrace.errors import BehindRetentionError
from headrace.settings import KIB, MIB, ShuffleSettings
from headrace.testing.crash import eventually
from tests.shuffle.real_task import POLL_S, Task

COUNT = 60
SMALL = ShuffleSettings(
    queue_soft_bytes=64 * KIB,
    queue_hard_bytes=MIB,
    credit_bytes=16 * KIB,
    fetch_bytes=16 * KIB,
    ahead_bytes=32 * KIB,
)
"""Together far less than what is written."""


# proves G5, G13
@pytest.mark.long
def test_what_retention_removes_before_it_is_read_is_an_error_and_no_gap(task: Task) -> None:
    task.workspace.collection("c", "n long, s string", key="n", retention_bytes=KIB)
    task.open("c", settings=SMALL)
    for n in range(COUNT):
        task.workspace.append("c", [{"n": n, "s": "x" * 5 * KIB}])
    eventually(lambda: is_full(task), POLL_S, "a full Queue")
    task.workspace.maintain()
    (journal,) = [each for each in task.workspace.journals() if each.name == "c/0000"]
    seen: list[int] = []
    with pytest.raises(BehindRetentionError) as raised:
        consume(task, seen)
    assert "c/0000: offset" in raised.value.what
    assert f"was removed by retention; it begins at {journal.begin}" in raised.value.what
    assert seen == list(range(len(seen))), "what was read before has no gap either"
    with pytest.raises(BehindRetentionError, match="was removed by retention"):
        task.shuffle.next_checkpoint(POLL_S)


def consume(task: Task, seen: list[int]) -> None:
    """Until nothing comes."""
    while shown := task.look():
        seen += shown.column("n")
        task.commit(shown)


def is_full(task: Task) -> bool:
    """Nobody consumes: reading stands still."""
    return any("over its soft limit" in member.waits for member in task.shuffle.status().members)
