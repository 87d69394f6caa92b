"""Where Spark has its logs of a task."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

import headrace
from headrace.errors import PeerLostError
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.shuffle import History
from headrace.shuffle.checkpoints.checkpoint_history import reset_task
from headrace.spark.sinks.contract import CheckpointId
from headrace.spark.tasks import task_run
from headrace.spark.tasks.task_run import Run, open_logs


def filled(location: str) -> Path:
    """As Spark would."""
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
    """Whatever a task is called. # proves G14"""
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
    """However late it looks for what it can remove. # proves G14"""
    filled(open_logs(workspace, "t")[1])
    successors: list[Path] = []

    def look_and_be_replaced(*of: Any) -> History:
        history = History(*of)
        monkeypatch.undo()
        reset_task(workspace.objects, "t")
        successors.append(filled(open_logs(workspace, "t")[1]))
        return history

    monkeypatch.setattr(task_run, "History", look_and_be_replaced)
    open_logs(workspace, "t")
    [successor] = successors
    assert (successor / "offsets" / "0").exists()


class Late(Run):
    """One whose source never starts in time."""

    def __init__(self, name: str) -> None:
        self._task: Any = SimpleNamespace(name=name)
        self._cause = self._lost = None
        self.queries = 0

    def _start(self, *of: Any, **options: Any) -> Any:
        self.queries += 1
        return SimpleNamespace(stop=lambda: None)

    def _watch_query(self, *of: Any) -> StreamingQueryException:
        return StreamingQueryException("Python worker failed to connect back.")


@pytest.mark.parametrize("are_gone", [False, True])
def test_a_source_that_never_starts_in_time_ends_the_run(are_gone: bool) -> None:
    """Also at once, if the members are gone meanwhile."""
    members: Any = SimpleNamespace(
        wait_for_end=lambda _: are_gone, failure=lambda: PeerLostError("member 0 was killed")
    )
    run = Late("t")
    target: Any = None
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        run._run_queries(target, members, once=True)
    assert run.queries == (1 if are_gone else task_run._LATE_STARTS)


class LostTarget:
    """Whose owner is gone with every write."""

    def __init__(self) -> None:
        self.writes = self.openings = 0

    def is_lost(self) -> bool:
        return True

    def reopen(self) -> None:
        self.openings += 1

    def last(self) -> int | None:
        return 0

    def write(self, *of: Any) -> None:
        self.writes += 1
        raise PeerLostError("the owner is gone")

    def close(self) -> None:
        """Nothing is open."""


def test_a_write_is_given_up_after_some_owners_that_were_lost() -> None:
    run, target, rows = Late("t"), LostTarget(), object()
    run._fence = cast(Any, SimpleNamespace(check=lambda: None))
    with pytest.raises(PeerLostError, match="the owner is gone"):
        run._write(target, cast(Any, rows), CheckpointId("t", "g", 1))
    assert (target.writes, target.openings) == (1 + OWNERS_LOST_MAX, OWNERS_LOST_MAX)
