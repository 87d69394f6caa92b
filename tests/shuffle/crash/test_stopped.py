"""`SIGSTOP`: a process that stands still is lost as soon as it was silent for too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import PeerLostError
from headrace.testing.crash import Child, eventually

SERVICE = hr.ServiceSettings(heartbeat_s=0.1, silence_s=1.5)
NOTICED_S = 20 * SERVICE.silence_s
"""The silence, and what a busy machine adds to it; half of what a caller would wait."""
WAIT_S = 60.0
MEMBERS = 2
START = "import headrace as hr; member = hr.Member(folder, service=service)"
COORDINATE = """
import headrace as hr
workspace = hr.open(root, settings=hr.Settings(service=service))
shuffle = hr.Shuffle(workspace, [hr.Binding(collection="c")], members, service=service)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "workspace", settings=hr.Settings(service=SERVICE)) as opened:
        opened.collection("c", "number long", key="number", journals=4)
        yield opened


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Child]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(Child(START, folder=tmp_path / f"{n}", service=SERVICE))
            for n in range(MEMBERS)
        ]


def open_shuffle(workspace: hr.Workspace, members: list[Child]) -> hr.Shuffle:
    addresses = [member.run("member.address") for member in members]
    return hr.Shuffle(workspace, [hr.Binding(collection="c")], addresses, service=SERVICE)


def publish_and_consume(workspace: hr.Workspace, shuffle: hr.Shuffle) -> None:
    """Everything that was ever published is seen."""
    workspace.append("c", [{"number": n} for n in range(100)])
    expected = workspace.table("c").num_rows
    seen = 0
    deadline = time.monotonic() + WAIT_S
    while seen < expected:
        assert time.monotonic() < deadline
        if found := shuffle.next_checkpoint(WAIT_S):
            for member in range(shuffle.members):
                seen += sum(batch.num_rows for _, batch in shuffle.read(member, found))
            shuffle.release(found)
    assert seen == expected


def has_files(tmp_path: Path, member: int) -> bool:
    """Whether a member keeps anything of any Session."""
    return any(tmp_path.glob(f"{member}/*/*"))


# proves G12, G13
@pytest.mark.parametrize("stopped", range(MEMBERS))
def test_a_member_that_stands_still_ends_the_session_and_is_named(
    workspace: hr.Workspace, members: list[Child], tmp_path: Path, stopped: int
) -> None:
    with open_shuffle(workspace, members) as shuffle:
        publish_and_consume(workspace, shuffle)
        members[stopped].stop()
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(PeerLostError, match=r"^member \d: .* silent"):
                shuffle.next_checkpoint(WAIT_S)
        assert time.monotonic() - began < NOTICED_S
    other = 1 - stopped
    eventually(lambda: not has_files(tmp_path, other), NOTICED_S, "the end on the other member")
    # Whoever comes to again gives up what is over, and is as good as new.
    members[stopped].resume()
    eventually(lambda: not has_files(tmp_path, stopped), WAIT_S, "the end on the stopped member")
    with open_shuffle(workspace, members) as shuffle:
        publish_and_consume(workspace, shuffle)


# proves G13
def test_a_session_does_not_open_with_a_member_that_stands_still(
    workspace: hr.Workspace, members: list[Child], tmp_path: Path
) -> None:
    addresses = [member.run("member.address") for member in members]
    members[1].stop()
    began = time.monotonic()
    with pytest.raises(PeerLostError):
        hr.Shuffle(workspace, [hr.Binding(collection="c")], addresses, service=SERVICE)
    assert time.monotonic() - began < NOTICED_S
    members[1].resume()
    for member in range(MEMBERS):
        eventually(lambda m=member: not has_files(tmp_path, m), WAIT_S, "the end")  # type: ignore[misc]
    with open_shuffle(workspace, members) as shuffle:
        publish_and_consume(workspace, shuffle)


# proves G13
def test_members_give_up_a_coordinator_that_stands_still(
    workspace: hr.Workspace, members: list[Child], tmp_path: Path
) -> None:
    with Child() as coordinator:
        coordinator.run(
            COORDINATE,
            root=tmp_path / "workspace",
            service=SERVICE,
            members=[member.run("member.address") for member in members],
        )
        assert all(has_files(tmp_path, member) for member in range(MEMBERS))
        coordinator.stop()
        for member in range(MEMBERS):
            eventually(lambda m=member: not has_files(tmp_path, m), NOTICED_S, "the end")  # type: ignore[misc]
        with open_shuffle(workspace, members) as shuffle:
            publish_and_consume(workspace, shuffle)
        coordinator.resume()
        with pytest.raises(PeerLostError):
            coordinator.run("shuffle.next_checkpoint(30)")
