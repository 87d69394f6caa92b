"""Owners end, die or stop, and another process takes over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.errors import (
    FencedError,
    HeadraceError,
    PeerLostError,
    PublishError,
    UsageError,
    WorkspaceError,
)
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.sequencer import Flags
from headrace.testing.crash import Child, eventually
from headrace.transport.owned_directory import OwnerAddress
from tests.journal.conftest import SETTINGS, column

pytestmark = pytest.mark.crash

LONG = "x" * SETTINGS.journal.transaction_buffer_bytes
OPEN = """
import headrace as hr
workspace = hr.open(root, settings=settings)
workspace.collection("c", "n long, text string")
"""


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def owning(location: Path) -> Iterator[Child]:
    """A process that owns the workspace and has appended 1 to its collection."""
    with Child(OPEN, root=location, settings=SETTINGS) as child:
        child.run('workspace.append("c", [{"n": 1}])')
        yield child


@pytest.fixture
def through(owning: Child, location: Path) -> Iterator[hr.Workspace]:
    """This process, which works through the owner."""
    with hr.open(location, settings=SETTINGS) as workspace:
        assert workspace.address is None
        yield workspace


def numbers(workspace: hr.Workspace) -> list[int]:
    return column(workspace, "c", "n")


def is_owner(workspace: hr.Workspace) -> bool:
    announced = WorkspaceDirectory(Path(workspace.location)).owner()
    assert announced is not None
    return workspace.address == announced.address and announced.process == os.getpid()


# proves G1, G3
def test_whoever_is_there_takes_over_from_an_owner_that_was_killed(
    owning: Child, through: hr.Workspace
) -> None:
    owning.run('tx = workspace.publisher("job").begin()\ntx.append("c", [{"n": 2}])\n'
               'tx.commit(b"kept")')  # fmt: skip
    owning.run("left = workspace.publisher().begin()")
    owning.run('left.append("c", [{"n": 3, "text": long}])', long=LONG)
    owning.run("left.invite()")  # Returns once everything sent before it is on the disk.
    owning.kill()
    assert numbers(through) == [1, 2]
    assert is_owner(through)
    [journal] = through.journals()
    *_, pending, end = through.frames(journal, committed=False)
    assert (pending.flags, end.flags, end.clock) == (Flags.CONTINUE, Flags.ACK, 0)
    assert through.publisher("job").payload == b"kept"
    through.append("c", [{"n": 4}])
    assert numbers(through) == [1, 2, 4]
    with hr.open(through.location, settings=SETTINGS) as another:
        assert another.address is None
        assert numbers(another) == [1, 2, 4]


# proves G2, G3
def test_what_was_under_way_when_the_owner_died_is_rolled_back_and_can_be_repeated(
    owning: Child, through: hr.Workspace
) -> None:
    named = through.publisher("job")
    tx = named.begin()
    tx.append("c", [{"n": 2, "text": LONG}])
    other = through.publisher().begin()
    other.append("c", [{"n": 3, "text": LONG}])
    owning.kill()
    other.rollback()
    with pytest.raises(PublishError, match=r"rolled back.*repeat it"):
        tx.commit()
    with pytest.raises(FencedError, match="'job' was refused or lost, and has ended; open it"):
        named.begin()
    with through.publisher("job") as again:
        again.append("c", [{"n": 2}])
    assert numbers(through) == [1, 2]


# proves G1
def test_a_commit_whose_answer_was_lost_is_told_by_the_next_owner(
    owning: Child, through: hr.Workspace
) -> None:
    publisher = through.publisher("job")
    pending = []
    for n in range(2, 30):
        tx = publisher.begin()
        tx.append("c", [{"n": n}])
        pending.append(tx.commit_nowait())
    pending[5].result()
    owning.kill()
    answers = []
    for n, commit in enumerate(pending, 2):
        try:
            commit.result()
            answers.append(n)
        except PublishError:
            pass
    assert answers[:6] == [2, 3, 4, 5, 6, 7]
    assert numbers(through) == [1, *answers]


def test_after_an_owner_that_left_in_good_order_the_others_go_on(
    owning: Child, through: hr.Workspace
) -> None:
    tx = through.publisher().begin()
    tx.append("c", [{"n": 2, "text": LONG}])
    owning.run("workspace.close()")
    with pytest.raises(PublishError, match="rolled back"):
        tx.commit()
    through.append("c", [{"n": 3}])
    assert numbers(through) == [1, 3]
    assert is_owner(through)


# proves G1, G2, G3
def test_of_many_exactly_one_takes_over_and_all_go_on(owning: Child, location: Path) -> None:
    with ExitStack() as stack:
        others = [
            stack.enter_context(Child(OPEN, root=location, settings=SETTINGS)) for _ in range(3)
        ]
        for other in others:
            assert other.run("workspace.address") is None
        owning.kill()
        for n, other in enumerate(others):
            other.start('workspace.append("c", [{"n": n}])', n=10 + n)
        assert [other.answer() for other in others] == [1, 1, 1]
        addresses = [other.run("workspace.address") for other in others]
        assert sum(address is not None for address in addresses) == 1
        found = others[0].run('workspace.table("c").column("n").to_pylist()')
    assert sorted(found) == [1, 10, 11, 12]


# proves G27
def test_of_many_that_open_at_once_exactly_one_owns(location: Path) -> None:
    with ExitStack() as stack:
        racing = [stack.enter_context(Child("import headrace")) for _ in range(4)]
        for child in racing:
            child.run("None")
        for n, child in enumerate(racing):
            child.start(OPEN + 'workspace.append("c", [{"n": n}])', n=n, root=location,
                        settings=SETTINGS)  # fmt: skip
        for child in racing:
            child.answer()
        addresses = [child.run("workspace.address") for child in racing]
        assert sum(address is not None for address in addresses) == 1
        with hr.open(location, settings=SETTINGS) as workspace:
            assert sorted(numbers(workspace)) == [0, 1, 2, 3]


IMPATIENT = msgspec.structs.replace(
    SETTINGS, service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=1.0)
)


# proves G27
def test_an_owner_that_is_stopped_is_not_displaced(location: Path) -> None:
    with ExitStack() as stack:
        owning = stack.enter_context(Child(OPEN, root=location, settings=IMPATIENT))
        owning.run('workspace.append("c", [{"n": 1}])')
        other = stack.enter_context(Child(OPEN, root=location, settings=IMPATIENT))
        assert other.run("workspace.address") is None
        owning.stop()
        with pytest.raises(
            WorkspaceError,
            match=f"is locked by process {owning.pid}, which cannot be reached .*;"
            " see whether that process is stopped or hangs",
        ):
            other.run('workspace.append("c", [{"n": 2}])')
        owning.resume()
        other.run('workspace.append("c", [{"n": 3}])')
        assert other.run("workspace.address") is None
        assert owning.run('workspace.table("c").column("n").to_pylist()') == [1, 3]


# proves G27
@pytest.mark.parametrize(
    "announced",
    [
        b"",
        b"{not json",
        b'{"address":"grpc://127.0.0.1:1","token":"t","process":1}',
        b'{"address":"nonsense","token":"t","process":1}',
    ],
)
def test_files_of_a_dead_owner_do_no_harm(location: Path, announced: bytes) -> None:
    with Child(OPEN, root=location, settings=SETTINGS) as child:
        child.run('workspace.append("c", [{"n": 1}])')
        child.kill()
    (location / "owner.json").write_bytes(announced)
    (location / ".writing-left").write_bytes(b"half")
    (location / "index" / "00000000000000000099.writing").write_bytes(b"half")
    with hr.open(location, settings=SETTINGS) as workspace:
        assert numbers(workspace) == [1]
        assert is_owner(workspace)
        workspace.append("c", [{"n": 2}])
    assert not (location / "owner.json").exists()
    assert not (location / "index" / "00000000000000000099.writing").exists()


# proves G27
def test_the_address_of_a_dead_owner_may_be_somebody_elses_by_now(
    location: Path, tmp_path: Path
) -> None:
    with hr.open(tmp_path / "other", settings=SETTINGS) as stranger:
        stranger.collection("c", "n long")
        assert stranger.address
        location.mkdir()
        directory = WorkspaceDirectory(location)
        directory.prepare(create=True)
        directory.announce(OwnerAddress(stranger.address, "wrong", 1))
        with hr.open(location, settings=SETTINGS) as workspace:
            assert is_owner(workspace)
            assert workspace.collections() == []


# proves G27
def test_an_address_reaches_its_owner_and_outlives_nobody(owning: Child, location: Path) -> None:
    announced = WorkspaceDirectory(location).owner()
    assert announced
    with hr.open(announced.address, token=announced.token, settings=SETTINGS) as workspace:
        workspace.append("c", [{"n": 2}])
        assert numbers(workspace) == [1, 2]
        owning.kill()

        def refused() -> HeadraceError | None:
            try:
                workspace.append("c", [{"n": 3}])
            except HeadraceError as error:
                return error
            return None

        assert isinstance(eventually(refused, 20, "the loss of the owner"), PeerLostError)
    with pytest.raises(UsageError, match="the workspace is closed"):
        workspace.journals()
    with hr.open(location, settings=SETTINGS) as again:
        assert numbers(again) == [1, 2]
