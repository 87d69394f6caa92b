"""How executors open a workspace, one task after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headrace
from headrace.errors import UsageError
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.spark.source import workspace_option
from headrace.spark.source.workspace_option import SharedWorkspaces, WorkspaceLocation, shared


@pytest.fixture(autouse=True)
def nothing_is_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: dict[str, tuple[WorkspaceRef, headrace.Workspace]] = {}
    monkeypatch.setattr(workspace_option, "_opened", opened)
    yield
    for _, workspace in opened.values():
        workspace.close()


def on_another_machine(workspace: headrace.Workspace) -> WorkspaceRef:
    reach = workspace.reach()
    assert reach.directory
    there = reach.directory._replace(kernel="of another machine")
    return msgspec.structs.replace(reach, directory=there)


def test_it_is_closed_with_the_last_write_to_it(tmp_path: Path) -> None:
    headrace.open(tmp_path / "workspace").close()
    there, workspaces = WorkspaceLocation.parse(str(tmp_path / "workspace")), SharedWorkspaces()
    with workspaces.opened(there) as first:
        with workspaces.opened(there) as second:
            assert second is first
        assert first.collections() == []
    with pytest.raises(UsageError, match="the workspace is closed"):
        first.collections()
    with workspaces.opened(there) as next:
        assert next is not first
        assert next.collections() == []


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_it_is_opened_once(workspace: headrace.Workspace, is_elsewhere: bool) -> None:
    reach = on_another_machine(workspace) if is_elsewhere else workspace.reach()
    opened = shared(reach)
    assert (opened.directory is None) == is_elsewhere
    assert shared(reach) is opened


def test_who_knows_the_address_only_is_told_of_the_next_owner(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with headrace.open(tmp_path / "workspace") as owner:
            owner.collection("a", "n long")
            seen.append(shared(on_another_machine(owner)))
            assert [each.name for each in seen[-1].collections()] == ["a"]
    assert seen[0] is not seen[1]
    assert len(workspace_option._opened) == 1
