"""Sessions over real members: what their users call, and how they end."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import (
    PeerLostError,
    StorageError,
    TransportError,
    UsageError,
)
from headrace.journal.local.watch import LocalWatch
from headrace.journal.names import selector
from headrace.settings import ServiceSettings, ShuffleSettings
from headrace.shuffle import Binding, Member, Shuffle
from headrace.shuffle.routing import Range
from headrace.testing.crash import eventually
from tests.shuffle.real_task import SOON_S, Task, soon, threads_of_sessions

# -- using a Session ---------------------------------------------------------------------------


def test_a_checkpoint_that_does_not_come_in_time_is_none_and_nothing_is_lost(task: Task) -> None:
    task.open("a")
    for _ in range(3):
        assert task.shuffle.next_checkpoint(0.01) is None
    task.append(0, 5)
    assert sum(len(shown.documents) for shown in task.take(5)) == 5
    assert task.shuffle.next_checkpoint(0) is None


def test_status_names_members_reads_and_what_is_open(task: Task) -> None:
    task.append(0, 10)
    task.open("a")
    task.take(10)
    open_transaction = task.workspace.publisher("slow").begin()
    open_transaction.append("a", [{"n": n} for n in range(10)])
    open_transaction._buffer.send(open_transaction._buffer.seal()).result()
    task.append(100, 10)
    task.take(10)
    status = eventually(
        lambda: found if len((found := task.shuffle.status()).transactions) == 2 else None,
        SOON_S,
        "both journals of the open transaction are reported",
    )
    assert status.places == 2
    assert [member.member for member in status.members] == [0, 1]
    assert sum(count for member in status.members for count in member.reads.values()) == 2
    assert all(member.waits == "" for member in status.members)
    assert sum(member.queue_bytes for member in status.members) > 0, "the open documents"
    assert {(each.journal, each.waits_for) for each in status.transactions} == {
        ("a/0000", "its ACK"),
        ("a/0001", "its ACK"),
    }
    assert len({each.producer for each in status.transactions}) == 1
    open_transaction.rollback()


def test_a_session_holds_one_watch_whatever_it_reads_and_through_how_many_members(
    tmp_path: Path,
) -> None:
    with Task(tmp_path, members=3) as task:
        task.workspace.collection("a", "n long", key="n", journals=8)
        task.workspace.collection("b", "p long, n long", key="n", partition_by="p")
        assert watches(task) == []
        task.open("a", "b")
        task.append(0, 100)
        task.take(100)
        (watch,) = watches(task)
        # It hears of journals that come later by the same one.
        task.workspace.append("b", [{"p": n % 5, "n": n} for n in range(100)])
        task.take(100)
        assert watches(task) == [watch]
        task.leave()
        assert watches(task) == []


def test_a_session_watches_the_journals_of_its_bindings_and_no_others(tmp_path: Path) -> None:
    with Task(tmp_path, members=1) as task:
        workspace = task.workspace
        workspace.collection("a", "n long", key="n", journals=2)
        workspace.collection("b", "p long, n long", key="n", partition_by="p")
        workspace.collection("other", "n long", journals=20)
        workspace.append("b", [{"p": p, "n": p} for p in range(5)])
        task.open("a", Binding(collection="b", selector=selector("b", {"p": [3, 7]})))
        (watch,) = watches(task)
        workspace.append("b", [{"p": 7, "n": 7}])
        task.take(2)
        names = {journal.id: journal.name for journal in workspace.journals()}
        assert sorted(names[id] for id in watch._matching) == [
            *("a/0000", "a/0001", "b/p=3/0000", "b/p=7/0000")
        ]


def watches(task: Task) -> list[LocalWatch]:
    """Those that the owner of the workspace serves, to any process."""
    ownership = task.workspace._connection.ownership
    assert ownership
    return [each for each in ownership.owner._watches if not each.closed]


def test_a_checkpoint_can_be_read_again_until_it_is_released(task: Task) -> None:
    task.append(0, 10)
    task.open("a")
    shown = task.look()
    assert shown is not None
    assert task.documents(shown.checkpoint) == shown.documents
    task.append(100, 5)
    later = task.look()
    assert later is not None
    assert task.documents(shown.checkpoint) == shown.documents
    task.commit(shown)
    task.commit(later)


# proves G13
def test_checkpoints_are_read_one_after_the_other(task: Task) -> None:
    task.append(0, 10)
    task.open("a")
    shown = task.look()
    assert shown is not None
    ahead = shown.checkpoint._replace(number=shown.checkpoint.number + 2)
    with pytest.raises(UsageError, match="checkpoint 3 cannot be read after checkpoint 1"):
        list(task.shuffle.read(0, ahead))


@pytest.mark.parametrize(
    ("members", "ranges", "error"),
    [
        ([], None, "a Session needs members; name at least one"),
        (
            "grpc://x:1",
            None,
            "members must be a list of addresses, got 'grpc://x:1'; use ['grpc://x:1']",
        ),
        (["x", "y", "x"], None, "a member is named twice; name every member once"),
        (
            ["x"],
            [Range(), Range()],
            "every member needs one range, got 2 for 1; give as many ranges as members",
        ),
        (
            ["x"],
            [Range(0, 5)],
            "the members' ranges leave a gap; choose ranges that tile the whole space",
        ),
        (
            ["x", "y"],
            [Range(), Range()],
            "the ranges of members 0 and 1 overlap; choose ranges that tile the whole space",
        ),
    ],
)
def test_a_topology_that_cannot_be_is_refused(
    task: Task, members: Sequence[str], ranges: list[Range] | None, error: str
) -> None:
    with pytest.raises(UsageError) as refused:
        Shuffle(task.workspace, [Binding(collection="a")], members, ranges=ranges)
    assert str(refused.value) == error


# proves G12, G13
def test_a_transaction_beyond_the_hard_limit_fails_and_is_named(task: Task) -> None:
    task.workspace.collection("big", "n long, text string", key="n", journals=1)
    settings = ShuffleSettings(queue_soft_bytes=100_000, queue_hard_bytes=300_000)
    task.open("big", settings=settings)
    transaction = task.workspace.publisher("huge").begin()
    for first in range(0, 200, 10):
        transaction.append(
            "big", [{"n": n, "text": "x" * 10_000} for n in range(first, first + 10)]
        )
        transaction._buffer.send(transaction._buffer.seal()).result()
    with soon(), pytest.raises(StorageError) as failed:
        task.look()
    assert "the Queue is over its hard limit of 0.3 MiB" in failed.value.what
    assert "journal big/0000 of binding 'big'" in failed.value.what
    assert "a retry will not help" in failed.value.do
    transaction.rollback()


# -- closing -----------------------------------------------------------------------------------


# proves G13
def test_closing_a_session_leaves_nothing_on_its_members(task: Task) -> None:
    task.append(0, 10)
    task.open("a")
    task.take(10)
    assert threads_of_sessions()
    assert queue_files(task)
    task.leave()
    eventually(
        lambda: not threads_of_sessions() and not queue_files(task), SOON_S, "everything has ended"
    )
    with pytest.raises(UsageError, match="the Session is closed"):
        closed_after_use(task).next_checkpoint(0)


def closed_after_use(task: Task) -> Shuffle:
    shuffle = task.open("a")
    task.leave()
    return shuffle


def queue_files(task: Task) -> list[Path]:
    return [each for each in (task.root / "queues").glob("*/*/*") if each.is_file()]


def test_closing_a_member_gives_back_its_port_and_its_files(tmp_path: Path) -> None:
    member = Member(tmp_path / "m")
    host, _, port = member.address.removeprefix("grpc://").partition(":")
    assert list((tmp_path / "m").iterdir())
    member.close()
    assert list((tmp_path / "m").iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


# proves G13
def test_who_reads_a_checkpoint_of_a_session_that_ended_is_told_why_it_did(task: Task) -> None:
    """Readers are in other processes, and do not hear what the Session does."""
    task.append(0, 10)
    task.open("a")
    shown = task.look()
    assert shown is not None
    share = task.shuffle.shares(shown.checkpoint)[0]
    task.members[1].close()
    eventually(lambda: not queue_files(task), SOON_S, "the end of the Session")
    # Whoever heard it first: a Slice, a Queue, or the Session.
    cause = r"^the Session has ended: (the (Queue|Slice) of )?member 1"
    with pytest.raises(PeerLostError, match=cause):
        list(share.read(ServiceSettings()))


# proves G13
def test_a_member_that_closes_ends_the_session_with_its_name(task: Task) -> None:
    task.append(0, 10)
    task.open("a")
    task.take(10)
    task.members[1].close()
    with soon(), pytest.raises(TransportError) as lost:
        task.look()
    assert "member " in lost.value.what
    for _ in range(2):
        with pytest.raises(TransportError) as again:
            task.shuffle.next_checkpoint(1)
        assert again.value.what == lost.value.what
    eventually(lambda: not queue_files(task), SOON_S, "no partial state is left")
