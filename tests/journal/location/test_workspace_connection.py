"""A workspace has one owner at a time; errors tell why a process cannot reach it."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.errors import DataError, HeadraceError, PublishError, StorageError, WorkspaceError
from headrace.journal.local.owner import Owner
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.log import Directory, Log
from headrace.testing.crash import Child
from headrace.transport.owned_directory import OwnerAddress
from tests.journal.conftest import SETTINGS, column

IMPATIENT = msgspec.structs.replace(
    SETTINGS, service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=0.5)
)
OPEN = """
import headrace as hr
from headrace.errors import WorkspaceError
workspace = hr.open(root, settings=settings)
"""
THROUGH = """
if workspace.address is None:
    raise WorkspaceError("works through the owner")
"""


@pytest.fixture
def location(tmp_path: Path) -> Path:
    with hr.open(tmp_path / "data", settings=SETTINGS) as workspace:
        workspace.collection("c", "n long")
        workspace.append("c", [{"n": 1}])
    return tmp_path / "data"


# proves G1
@pytest.mark.long
@pytest.mark.parametrize(
    ("deleted", "message"),
    [
        ("lock", "works through the owner"),
        ("owner.json", "is locked by a process, which cannot be reached"),
        ("workspace.json", "holds files that are not a workspace's"),
        ("", "holds files that are not a workspace's"),
    ],
    ids=["lock", "owner.json", "workspace.json", "all of them"],
)
def test_no_file_that_is_deleted_lets_a_second_owner_in(
    location: Path, deleted: str, message: str
) -> None:
    with hr.open(location, settings=SETTINGS) as owner:
        for path in location.iterdir():
            if path.is_file() and deleted in (path.name, ""):
                path.unlink()
        with Child() as child, pytest.raises(WorkspaceError, match=message):
            child.run(OPEN + THROUGH, root=location, settings=IMPATIENT)
        owner.append("c", [{"n": 2}])
        assert column(owner, "c", "n") == [1, 2]
    if deleted in ("lock", "owner.json"):
        with hr.open(location, settings=SETTINGS) as again:
            assert column(again, "c", "n") == [1, 2]


# proves G27
def test_nobody_works_through_the_owner_of_another_workspace(
    location: Path, tmp_path: Path
) -> None:
    """Both owners have the same token, and one got the address of the other."""
    with hr.open(tmp_path / "other", token="shared", settings=SETTINGS) as stranger:
        stranger.collection("c", "n long")
        assert stranger.address
        starting = WorkspaceDirectory(location)
        assert starting.try_lock()
        starting.announce(OwnerAddress(stranger.address, "shared", 1))
        with pytest.raises(WorkspaceError, match="is locked by process 1, which cannot be reached"):
            hr.open(location, settings=IMPATIENT)
        starting.unlock()
        with hr.open(location, settings=SETTINGS) as workspace:
            assert workspace.address
            assert column(workspace, "c", "n") == [1]
        assert column(stranger, "c", "n") == []


# proves G27
@pytest.mark.crash
def test_the_next_owner_tells_what_became_of_an_append_outside_of_transactions(
    location: Path,
) -> None:
    with Child(OPEN, root=location, settings=SETTINGS) as owning:
        assert owning.run("workspace.address")
        with hr.open(location, settings=SETTINGS) as workspace:
            collection = workspace.collection("c")
            workspace.append(collection, [{"n": 2}])
            owning.stop()
            raised: list[BaseException] = []

            def append() -> None:
                try:
                    workspace.append(collection, [{"n": 3}])
                except HeadraceError as error:
                    raised.append(error)

            appending = threading.Thread(target=append)
            appending.start()
            owning.kill()
            appending.join()
            [error] = raised
            assert type(error) is PublishError
            assert str(error).startswith("nothing was appended: ")
            assert column(workspace, "c", "n") == [1, 2]
            workspace.append(collection, [{"n": 3}])
            assert column(workspace, "c", "n") == [1, 2, 3]


# proves G1, G2, G27
@pytest.mark.parametrize("through_the_owner", [False, True])
def test_an_owner_that_stopped_writing_tells_all_to_open_it_again_and_can_be_closed(
    location: Path, monkeypatch: pytest.MonkeyPatch, through_the_owner: bool
) -> None:
    with (
        hr.open(location, settings=SETTINGS) as owner,
        hr.open(location, settings=SETTINGS) as other,
    ):
        workspace = other if through_the_owner else owner
        publisher = workspace.publisher("job")
        tx = publisher.begin()
        tx.append("c", [{"n": 2}])
        with monkeypatch.context() as patch:
            patch.setattr(Owner, "_queue", overflow)
            with pytest.raises(hr.InDoubtError if through_the_owner else OverflowError):
                tx.commit()
        for each in (owner, other):
            for use in (
                lambda: each.append("c", [{"n": 3}]),  # noqa: B023
                lambda: each.publisher("job"),  # noqa: B023
                lambda: each.collection("d", "n long"),  # noqa: B023
            ):
                with pytest.raises(WorkspaceError, match="stopped writing after OverflowError"):
                    use()
            assert column(each, "c", "n") == [1]
    with hr.open(location, settings=SETTINGS) as again:
        assert column(again, "c", "n") == [1]
        assert [each.name for each in again.collections()] == ["c"]
        again.append("c", [{"n": 4}])


def overflow(*_: object) -> None:
    raise OverflowError


# proves G2
def test_what_became_of_a_commit_that_stopped_the_owner_is_told_by_the_next_one(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = hr.open(location, settings=SETTINGS)
    with hr.open(location, settings=SETTINGS) as workspace:
        publisher = workspace.publisher("job")
        with publisher as tx:
            tx.append("c", [{"n": 2}])
        tx = publisher.begin()
        tx.append("c", [{"n": 3}])
        with monkeypatch.context() as patch:
            patch.setattr(Owner, "_queue", overflow)
            pending = tx.commit_nowait()
            with pytest.raises(
                hr.InDoubtError,
                match=r"nobody knows yet whether .* committed: .* ask with ws\.outcome\(",
            ):
                pending.result()
        owner.close()
        with pytest.raises(PublishError, match="the transaction was rolled back"):
            pending.result()
        assert workspace.outcome(pending.id) is hr.CommitOutcome.ROLLED_BACK
        assert workspace.address
        assert column(workspace, "c", "n") == [1, 2]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of syncs that still succeed on a disk that fills up."""
    sync, left = os.fsync, [1 << 30]

    def fill(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    yield left
    left[0] = 1 << 30


# proves G27
@pytest.mark.parametrize("made_before", [True, False])
def test_a_disk_that_is_full_at_opening_is_named_with_the_remedy(
    tmp_path: Path, location: Path, syncs: list[int], made_before: bool
) -> None:
    refusals: list[StorageError | None] = []
    while not refusals or refusals[-1] is not None:
        root = location if made_before else tmp_path / f"{len(refusals)}"
        syncs[0] = len(refusals)
        refusals.append(refusal(root))
        syncs[0] = 1 << 30
        with hr.open(root, settings=SETTINGS) as again:
            assert len(again.collections()) == made_before
    assert len(refusals) > (2 if made_before else 4)
    for error in filter(None, refusals):
        assert "No space left on device" in error.what
        assert re.search("free .*space", error.do)


def refusal(root: Path) -> StorageError | None:
    try:
        hr.open(root, settings=SETTINGS).close()
    except StorageError as error:
        return error
    return None


# proves G27
def test_a_record_that_cannot_be_decoded_is_named_by_file_and_offset(location: Path) -> None:
    log = Log(Directory(location / "log"))
    [offset] = log.append([[b"\x09junk"]])
    log.close()
    with pytest.raises(DataError) as refused:
        hr.open(location, settings=SETTINGS)
    [segment] = (location / "log").iterdir()
    assert str(refused.value).startswith(f"{segment} at offset {offset}: ")
    assert refused.value.do
