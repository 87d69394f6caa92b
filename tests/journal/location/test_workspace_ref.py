"""Other processes open a workspace by its directory if they see it, else by its address."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.errors import NotFoundError, PeerLostError
from headrace.files import DirectoryIdentity, identify_directory
from headrace.journal.location.workspace_ref import WorkspaceRef, callable_by_others
from headrace.journal.workspace import Workspace
from headrace.settings import ServiceSettings

SERVICE = ServiceSettings()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


def on_another_machine(reach: WorkspaceRef) -> WorkspaceRef:
    assert reach.directory
    there = reach.directory._replace(kernel="of another machine")
    return msgspec.structs.replace(reach, directory=there)


def test_who_sees_the_directory_opens_it(directory: Path) -> None:
    with hr.open(directory) as owner, owner.reach().open(Workspace, SERVICE) as other:
        owner.collection("a", "n long")
        assert other.directory == directory
        assert [each.name for each in other.collections()] == ["a"]


def test_who_sees_another_directory_at_the_same_path_calls_the_owner(directory: Path) -> None:
    with hr.open(directory, token="known") as owner:
        owner.collection("a", "n long")
        with on_another_machine(owner.reach()).open(Workspace, SERVICE) as other:
            assert other.directory is None
            assert other.location == owner.address
            assert [each.name for each in other.collections()] == ["a"]


def test_a_workspace_that_is_worked_through_is_reached_at_its_owner(directory: Path) -> None:
    with hr.open(directory, token="known") as owner, hr.open(directory) as worker:
        assert worker.reach() == owner.reach()
        with hr.open(str(owner.address), token="known") as caller:
            assert caller.reach() == WorkspaceRef(None, str(owner.address), "known")


def test_after_its_owner_is_gone_it_is_reached_at_the_next_one(directory: Path) -> None:
    with hr.open(directory) as owner:
        worker = hr.open(directory)
        before = worker.reach()
        assert before.address == owner.address
    with worker:
        after = worker.reach()
        assert after.address == worker.address
        assert after.directory == before.directory == identify_directory(directory)


def test_another_workspace_at_the_same_address_is_not_taken_for_it(tmp_path: Path) -> None:
    with hr.open(tmp_path / "one", token="known") as one:
        reach = on_another_machine(one.reach())
        port = int(reach.address.rpartition(":")[2])
    service = ServiceSettings(port=port, token="known")
    with hr.open(tmp_path / "other", settings=hr.Settings(service=service)) as other:
        assert other.address == reach.address
        with pytest.raises(NotFoundError, match="no service"):
            reach.open(Workspace, SERVICE)


def test_what_cannot_be_reached_is_said_with_the_remedy(directory: Path) -> None:
    with hr.open(directory) as owner:
        reach = owner.reach()
    with pytest.raises(PeerLostError, match=r"not open to this process, .* reached: .*--host"):
        on_another_machine(reach).open(Workspace, SERVICE)
    nowhere = WorkspaceRef(DirectoryIdentity(str(directory), "", 0, 0), "", "")
    with pytest.raises(PeerLostError, match="cannot be reached: its owner is gone"):
        nowhere.open(Workspace, SERVICE)


@pytest.mark.parametrize(
    ("listens", "called"),
    [
        ("grpc://0.0.0.0:70", "grpc://{name}:70"),
        ("grpc+tls://[::]:70", "grpc+tls://{name}:70"),
        ("grpc://10.0.0.0:70", "grpc://10.0.0.0:70"),
        ("grpc://[::1]:70", "grpc://[::1]:70"),
        ("grpc://127.0.0.1:70", "grpc://127.0.0.1:70"),
        ("", ""),
    ],
)
def test_an_owner_that_listens_everywhere_is_called_by_name(listens: str, called: str) -> None:
    assert callable_by_others(listens) == called.format(name=socket.gethostname())
