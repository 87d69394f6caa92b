"""Where Spark keeps its logs of a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.shuffle import History
from headrace.shuffle.checkpoints.checkpoint_history import reset_task
from headrace.spark.tasks import query_logs
from headrace.spark.tasks.query_logs import open_logs


def filled(location: str) -> Path:
    """Write what Spark would write."""
    folder = Path(location.removeprefix("file://"))
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text("v1")
    return folder


def files(workspace: headrace.Workspace) -> set[Path]:
    assert workspace.directory
    return {each for each in workspace.directory.rglob("*") if "objects" not in each.parts}


@pytest.mark.parametrize("name", [".", "..", "./..", "../..", ".hidden", "a", "a/b"])
def test_logs_of_former_generations_are_removed_and_nothing_else(
    workspace: headrace.Workspace, name: str
) -> None:
    """This holds for every name that a task may have. # proves G14"""
    workspace.collection("a", "n long")
    workspace.append("a", [{"n": 1}])
    filled(open_logs(workspace, "another")[1])
    before = files(workspace)
    first = filled(open_logs(workspace, name)[1])
    assert open_logs(workspace, name)[1] == f"file://{first}"
    assert first.is_dir()
    reset_task(workspace.objects, name)
    second = filled(open_logs(workspace, name)[1])
    assert first != second
    assert files(workspace) - before == {
        *(second.parent, second, second / "offsets", second / "offsets" / "0")
    }
    assert before <= files(workspace)
    assert workspace.table("a")["n"].to_pylist() == [1]


def test_a_run_that_was_replaced_does_not_remove_the_logs_of_its_successor(
    workspace: headrace.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look for logs to remove at any later time. # proves G14"""
    filled(open_logs(workspace, "t")[1])
    successors: list[Path] = []

    def look_and_be_replaced(*of: Any) -> History:
        history = History(*of)
        monkeypatch.undo()
        reset_task(workspace.objects, "t")
        successors.append(filled(open_logs(workspace, "t")[1]))
        return history

    monkeypatch.setattr(query_logs, "History", look_and_be_replaced)
    open_logs(workspace, "t")
    [successor] = successors
    assert (successor / "offsets" / "0").exists()
