"""Fixtures for tests of real services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shuffle.real_task import Begin, Task


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    """Two members, and a collection `a` of two journals."""
    with Task(tmp_path) as task:
        task.workspace.collection("a", "n long", key="n", journals=2)
        yield task


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """A task of some members, with collections `a` and `b`."""
    begun: list[Task] = []

    def begin(members: int = 2, journals: int = 2) -> Task:
        task = Task(tmp_path, members)
        begun.append(task)
        for name in ("a", "b"):
            task.workspace.collection(name, "n long, text string", key="n", journals=journals)
        return task

    yield begin
    for task in begun:
        task.close()
