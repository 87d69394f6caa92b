from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.stores.service.store_directory import create_store
from headrace.testing.crash import Child

SETUP = """
from pathlib import Path
from headrace.stores.checkpoint_record import StoreCheckpoint
from tests.stores.service.row_store import *
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of an empty store of rows."""
    create_store(tmp_path / "rows", "timeseries")
    return tmp_path / "rows"


@pytest.fixture(scope="session")
def spare_children() -> Iterator[list[Child]]:
    """Processes that earlier tests left alive."""
    spare: list[Child] = []
    yield spare
    for child in spare:
        child.kill()


@pytest.fixture
def child(spare_children: list[Child]) -> Iterator[Child]:
    """Another process, which knows the names of `row_store`."""
    child = spare_children.pop() if spare_children else Child(SETUP)
    yield child
    if child.is_alive:
        spare_children.append(child)


@pytest.fixture
def owner(place: Path, child: Child) -> Iterator[Child]:
    """Another process, which has the store open as `store`."""
    child.run("store = open_rows(place)", place=str(place))
    yield child
    if child.is_alive:
        child.run("store.close()")
