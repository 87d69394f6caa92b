"""Directories that cannot be a workspace, failing disks, and unreachable owners."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.errors import (
    HeadraceError,
    StorageError,
    VersionError,
    WorkspaceError,
)
from headrace.journal.local import owner as owner_module
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.log import Directory
from tests.journal.conftest import SETTINGS, column
from tests.log.faulty_disk import Faults, FaultyDisk

IMPATIENT = msgspec.structs.replace(
    SETTINGS, service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=0.2)
)


def fill(location: Path) -> None:
    with hr.open(location, settings=SETTINGS) as workspace:
        workspace.collection("c", "n long")
        workspace.append("c", [{"n": 1}])


def newer(location: Path) -> None:
    (location / "workspace.json").write_text('{"format":99}')


def broken(location: Path) -> None:
    (location / "workspace.json").write_text("{")


def lost(location: Path) -> None:
    (location / "workspace.json").unlink()


# proves G27
@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (
            newer,
            VersionError,
            "{location} has format 99, and this Headrace knows up to 1;"
            " use the Headrace that wrote it, or a newer one",
        ),
        (
            broken,
            WorkspaceError,
            "{location}/workspace.json cannot be read: Input data was truncated;"
            " restore it from a backup",
        ),
        (
            lost,
            WorkspaceError,
            "{location} holds files that are not a workspace's; choose an empty or a new directory",
        ),
    ],
)
def test_a_workspace_that_cannot_be_read_is_refused_and_left_alone(
    tmp_path: Path, damage: Callable[[Path], None], kind: type[HeadraceError], message: str
) -> None:
    location = tmp_path / "data"
    fill(location)
    version = (location / "workspace.json").read_bytes()
    damage(location)
    before = contents(location)
    with pytest.raises(kind) as refused:
        hr.open(location, settings=SETTINGS)
    assert str(refused.value) == message.replace("{location}", str(location))
    assert contents(location) == before
    (location / "workspace.json").write_bytes(version)
    with hr.open(location, settings=SETTINGS) as workspace:
        assert column(workspace, "c", "n") == [1]


def contents(location: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in location.rglob("*") if each.is_file()}


# proves G27
def test_a_location_that_is_no_workspace_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError) as refused:
        hr.open(tmp_path / "none", settings=SETTINGS, create=False)
    assert str(refused.value) == (
        f"{tmp_path / 'none'} is not a workspace; create a collection there"
    )
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("text")
    with pytest.raises(StorageError) as denied:
        hr.open(tmp_path / "file" / "data", settings=SETTINGS)
    assert str(denied.value) == (
        f"{tmp_path / 'file' / 'data'}: Not a directory; choose a directory that can be written to"
    )


# proves G27
def test_an_owner_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    location = tmp_path / "data"
    fill(location)
    held = WorkspaceDirectory(location)
    assert held.try_lock()
    with pytest.raises(WorkspaceError) as refused:
        hr.open(location, settings=IMPATIENT)
    assert str(refused.value) == (
        f"{location} is locked by a process, which cannot be reached"
        " (it has not announced its address);"
        " see whether that process is stopped or hangs"
    )
    held.unlock()
    with hr.open(location, settings=SETTINGS) as workspace:
        assert column(workspace, "c", "n") == [1]


# proves G1, G2, G27
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("through_the_owner", [False, True])
def test_a_disk_that_refuses_loses_nothing_and_shows_nothing_of_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, through_the_owner: bool
) -> None:
    location = tmp_path / "data"
    fill(location)
    # The commit is the first write that fails: the log must not write a seal before it.
    busy = msgspec.structs.replace(
        SETTINGS, log=msgspec.structs.replace(SETTINGS.log, idle_seal_s=3600.0)
    )
    faults = Faults(first=1 << 60, forever=True, code=code)
    monkeypatch.setattr(owner_module, "Directory", lambda path: FaultyDisk(Directory(path), faults))
    with hr.open(location, settings=busy) as owner:
        with hr.open(location, settings=SETTINGS) as other:
            workspace = other if through_the_owner else owner
            workspace.append("c", [{"n": 2}])
            tx = workspace.publisher().begin()
            tx.append("c", [{"n": 3}])
            faults.first = 0
            with pytest.raises(hr.InDoubtError, match="could not be cut") as doubt:
                tx.commit()
            for use in (
                lambda: workspace.append("c", [{"n": 4}]),
                lambda: workspace.collection("d", "n long"),
                lambda: workspace.publisher("job"),
            ):
                with pytest.raises(StorageError) as refused:
                    use()
                assert os.strerror(code) in refused.value.what
                assert refused.value.do
                assert "\n" not in str(refused.value)
            for reader in (owner, other):
                assert column(reader, "c", "n") == [1, 2]
                assert [each.name for each in reader.collections()] == ["c"]
        faults.first = 1 << 60
    with hr.open(location, settings=SETTINGS) as again:
        assert again.outcome(doubt.value.id) is hr.CommitOutcome.ROLLED_BACK
        assert column(again, "c", "n") == [1, 2]
        again.append("c", [{"n": 5}])
        assert column(again, "c", "n") == [1, 2, 5]
