"""Keys and paths of a task. Workspaces hold objects and files under them, so they never change."""

from __future__ import annotations

import pytest

from headrace.shuffle.checkpoints.task_keys import (
    checkpoints_prefix,
    fence_key,
    logs_path,
    parse_fence_key,
    parse_record_key,
    record_key,
    runs_path,
)
from headrace.storage.contract import check_key

NUMBER = "00000000000000000007"


@pytest.mark.parametrize(
    ("task", "component", "quoted"),
    [
        ("totals", "totals", "totals"),
        ("bank/totals", "bank%2Ftotals", "bank%2Ftotals"),
        (".hidden", "%2Ehidden", ".hidden"),
        ("..", "%2E.", ".."),
        ("a.b-c_d", "a.b-c_d", "a.b-c_d"),
    ],
)
def test_keys_and_paths_stay_what_they_are(task: str, component: str, quoted: str) -> None:
    assert checkpoints_prefix(task) == f"tasks/{component}"
    assert record_key(task) == f"about/task-{quoted}"
    assert fence_key(task, 7) == f"turns/task-{quoted}/{NUMBER}"
    assert logs_path(task) == f"tasks/{component}"
    assert runs_path(task) == f"runs/{component}"
    for key in (checkpoints_prefix(task), record_key(task), fence_key(task, 7)):
        check_key(key)
    assert parse_record_key(record_key(task)) == task
    assert parse_fence_key(fence_key(task, 7)) == 7
