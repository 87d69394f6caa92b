"""How far a task is behind its sources, for those who look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.spark.tasks.lag_watch import LagWatch, behind_bytes

BINDINGS = [hr.Binding(collection="a")]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "workspace") as opened:
        opened.collection("a", "n long", key="n", journals=2)
        opened.collection("b", "n long", key="n")
        yield opened


def published(workspace: hr.Workspace) -> int:
    """Append, and return how many bytes the sources have."""
    for collection in "ab":
        workspace.append(collection, [{"n": n} for n in range(10)])
    return sum(each.head for each in workspace.journals() if each.name.startswith("a/"))


def test_it_follows_the_sources_until_it_is_closed(workspace: hr.Workspace) -> None:
    lag = LagWatch(workspace, BINDINGS, hr.Checkpoint())
    assert lag.bytes() == 0
    first = published(workspace)
    assert lag.bytes() == first > 0
    second = published(workspace)
    assert lag.bytes() == second > first
    lag.close()
    published(workspace)
    assert lag.bytes() == second, "it watches no more, and says what it saw last"


def test_who_looks_once_sees_the_same(workspace: hr.Workspace) -> None:
    assert behind_bytes(workspace, BINDINGS, hr.Checkpoint()) == 0
    there = published(workspace)
    assert behind_bytes(workspace, BINDINGS, hr.Checkpoint()) == there
    workspace.delete_collection("a")
    assert behind_bytes(workspace, BINDINGS, hr.Checkpoint()) is None


def test_it_counts_anew_after_nobody_could_be_asked(workspace: hr.Workspace) -> None:
    lag = LagWatch(workspace, BINDINGS, hr.Checkpoint())
    there = published(workspace)
    assert lag.bytes() == there
    assert lag._watch
    lag._watch.close()
    [gone, left] = workspace.journals(hr.selector("a"))
    workspace.delete_journals([gone.name])
    assert lag.bytes() == there, "nobody can be asked"
    assert lag.bytes() == left.head > 0
    lag.close()
