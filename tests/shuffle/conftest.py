"""What tests of real services begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shuffle.running import Task


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    """Two members, and a collection `a` of two journals."""
    with Task(tmp_path) as made:
        made.workspace.collection("a", "n long", key="n", journals=2)
        yield made
