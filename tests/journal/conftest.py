"""Fixtures: a workspace in its owner, and in a connection that works through the owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

SETTINGS = hr.Settings(
    log=hr.LogSettings(segment_bytes=64 * 1024),
    journal=hr.JournalSettings(
        document_bytes_max=100_000,
        frame_bytes_target=4096,
        transaction_buffer_bytes=16 * 1024,
        keeper_interval_s=3600,
    ),
    service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=20.0),
)
"""Limits that a test can reach; maintenance runs only when a test calls it."""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "data", settings=SETTINGS) as workspace:
        assert workspace.address
        yield workspace


@pytest.fixture(params=["local", "remote"])
def workspace(request: pytest.FixtureRequest, owner: hr.Workspace) -> Iterator[hr.Workspace]:
    """The owner itself, and then a connection that works through it."""
    if request.param == "local":
        yield owner
        return
    with hr.open(owner.location, settings=SETTINGS) as other:
        assert other.address is None
        yield other


def documents(workspace: hr.Workspace, collection: str, **options: Any) -> list[dict[str, Any]]:
    """Return the documents that a reader sees now."""
    found: list[dict[str, Any]] = workspace.table(collection, **options).to_pylist()
    return found


def column(workspace: hr.Workspace, collection: str, field: str, **options: Any) -> list[Any]:
    return [document[field] for document in documents(workspace, collection, **options)]


def mixture(workspace: hr.Workspace) -> None:
    """Write every kind of transaction, small and split into frames, to two journals."""
    workspace.collection("c", "n long, text string", key="n", journals=2)
    for n in range(6):
        workspace.append("c", [{"n": n}])
        tx = workspace.publisher().begin()
        tx.append("c", [{"n": 100 * n + at, "text": "x" * 500} for at in range(60)])
        tx.rollback() if n % 3 == 2 else tx.commit()
    still_open = workspace.publisher("open").begin()
    still_open.append("c", [{"n": n, "text": "y" * 1000} for n in range(40)])
    still_open.invite()
