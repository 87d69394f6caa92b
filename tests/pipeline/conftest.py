"""Fixtures of the pipeline's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "data") as workspace:
        yield workspace
