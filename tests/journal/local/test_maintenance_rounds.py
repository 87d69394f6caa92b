"""Rounds of maintenance: several at once, and one after a failed one."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import StorageError
from headrace.journal.local import maintenance, snapshot
from headrace.journal.local.owner import Owner
from headrace.settings import KIB
from tests.journal.local.maintained_workspace import MaintainedWorkspace


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[MaintainedWorkspace]:
    with MaintainedWorkspace(tmp_path / "data") as workspace:
        yield workspace


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_SNAPSHOT_EVERY_BYTES", 16 * KIB)


def scattered(kept: MaintainedWorkspace) -> None:
    """Write segments of which journals hold little, so that rewriting has work to do."""
    kept.workspace.collection("gone", "n long, text string")
    kept.workspace.collection("stays", "n long, text string")
    for n in range(0, 60, 6):
        kept.fill("gone", n, 6)
        kept.fill("stays", n, 1)
    kept.workspace.delete_collection("gone")
    for _ in range(2):
        kept.workspace.append("kept/marks", [{"n": 0}])
        kept.maintenance.save_snapshot()


# proves G1
def test_rounds_that_are_asked_for_at_once_come_one_after_the_other(
    kept: MaintainedWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round waits in the middle for a second to begin, which must not happen."""
    scattered(kept)
    before = kept.raw()
    inside, most = 0, 0
    another = threading.Event()
    counting = threading.Lock()
    move = Owner.write_moved

    def counted(owner: Owner, payloads: Sequence[memoryview]) -> None:
        nonlocal inside, most
        with counting:
            inside += 1
            most = max(most, inside)
            if inside > 1:
                another.set()
        another.wait(0.1)
        move(owner, payloads)
        with counting:
            inside -= 1

    monkeypatch.setattr(Owner, "write_moved", counted)
    failures = at_once(
        kept.maintenance.run_round, kept.maintenance.run_round, kept.maintenance.run_round
    )
    assert failures == []
    assert most == 1
    assert kept.raw() == before
    kept.reopen()
    assert kept.raw() == before


def at_once(*rounds: Callable[[], None]) -> list[BaseException]:
    """Run them at once, and return the errors that they raised."""
    with ThreadPoolExecutor(len(rounds)) as pool:
        outcomes = [future.exception() for future in [pool.submit(use) for use in rounds]]
    return [error for error in outcomes if error]


# proves G1
def test_a_workspace_may_be_maintained_by_many_threads_while_it_is_written_to(
    kept: MaintainedWorkspace, frequent_snapshots: None
) -> None:
    workspace = kept.workspace
    workspace.collection("short", "n long, text string", retention_bytes=20_000)
    workspace.collection("stays", "n long, text string")
    done = threading.Event()

    def maintain() -> None:
        while not done.is_set():
            workspace.maintain()

    def write() -> None:
        try:
            for n in range(0, 120, 4):
                kept.fill("short", n, 4)
                kept.fill("stays", n, 1)
        finally:
            done.set()

    assert at_once(write, maintain, maintain, maintain) == []
    assert kept.numbers("stays") == list(range(0, 120, 4))
    kept.reopen()
    assert kept.numbers("stays") == list(range(0, 120, 4))


def test_a_snapshot_that_failed_is_tried_again(
    kept: MaintainedWorkspace, frequent_snapshots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.workspace.collection("c", "n long, text string")
    kept.fill("c", 0, 10)
    attempts = 0

    def full(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "write_durably", full)
        for _ in range(2):
            with pytest.raises(StorageError, match="could not be written: No space left"):
                kept.maintenance.run_round()
    assert attempts == 2
    assert kept.owner.snapshots.positions() == []
    kept.maintenance.run_round()
    [position] = kept.owner.snapshots.positions()
    assert position > 0
    kept.maintenance.run_round()
    assert kept.owner.snapshots.positions() == [position]


def test_a_close_tries_the_snapshot_that_failed_before(
    kept: MaintainedWorkspace, frequent_snapshots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.workspace.collection("c", "n long, text string")
    kept.fill("c", 0, 10)
    monkeypatch.setattr(maintenance, "_SNAPSHOT_ON_CLOSE_BYTES", 16 * KIB)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "write_durably", refuse)
        with pytest.raises(StorageError):
            kept.workspace.maintain()
    kept.reopen()
    assert len(kept.owner.snapshots.positions()) == 1
    assert kept.numbers("c") == list(range(10))


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_retention_in_bytes_keeps_at_least_that_much(kept: MaintainedWorkspace) -> None:
    workspace: hr.Workspace = kept.workspace
    workspace.collection("c", "n long, text string", retention_bytes=6000)
    for n in range(6):
        kept.fill("c", n, 1)
        kept.maintenance.run_round()
        [journal] = workspace.journals(hr.selector("c"))
        assert journal.head - journal.begin >= min(6000, journal.head)
        assert n in kept.numbers("c")
