"""Readers and watches continue when the owner of the workspace is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import headrace as hr
from headrace.errors import PeerLostError, UsageError, WorkspaceError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo, Journals
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.local.watch import LocalWatch
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX, WorkspaceConnection
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.wire.failover import FailoverReads, FailoverWatch
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.testing.crash import Child, eventually

pytestmark = pytest.mark.crash

OPEN = "import headrace as hr; workspace = hr.open(root, settings=settings)"
SOON_S = 30.0
SWIFT = hr.Settings(service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=1.0))


@pytest.fixture
def owning(tmp_path: Path) -> Iterator[Child]:
    """A process that owns the workspace, with journals `a/0000` and `b/0000`."""
    with Child(OPEN, root=tmp_path / "data", settings=SWIFT) as child:
        for name in ("a", "b"):
            child.run(f"workspace.collection({name!r}, 'n long')")
            child.run(f"workspace.append({name!r}, [{{'n': 1}}])")
        yield child


@pytest.fixture
def through(owning: Child, tmp_path: Path) -> Iterator[hr.Workspace]:
    """This process, which works through the owner."""
    with hr.open(tmp_path / "data", settings=SWIFT) as workspace:
        assert workspace.address is None
        yield workspace


def journal(workspace: hr.Workspace, name: str) -> JournalInfo:
    return next(each for each in workspace.journals() if each.name == name)


def test_a_watch_tells_what_changed_while_nobody_owned_the_workspace(
    owning: Child, through: hr.Workspace
) -> None:
    watch = through.watch()
    first = watch.next(0)
    assert [each.name for each in first.created] == ["a/0000", "b/0000"]
    before = {each.name: each for each in first.created}
    owning.kill()
    # The next call of any kind finds the next owner, which is this process.
    through.append("a", [{"n": 2}])
    through.delete_collection("b")
    through.collection("c", "n long")
    through.append("c", [{"n": 3}])
    assert watch.next(SOON_S) == Changes(
        [journal(through, "c/0000")],
        [before["b/0000"].id],
        {before["a/0000"].id: journal(through, "a/0000").head},
    )
    through.append("a", [{"n": 4}])
    assert watch.next(SOON_S).heads == {before["a/0000"].id: journal(through, "a/0000").head}
    watch.close()
    with pytest.raises(UsageError, match="the watch is closed"):
        watch.next(0)


def test_a_watch_of_an_owner_that_changes_before_it_is_asked_tells_everything(
    owning: Child, through: hr.Workspace
) -> None:
    watch = through.watch()
    owning.kill()
    assert [each.name for each in watch.next(0).created] == ["a/0000", "b/0000"]
    watch.close()


def test_a_head_that_moves_while_the_next_owner_is_being_watched_is_told(
    owning: Child, through: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = through.watch()
    [first, _] = watch.next(0).created
    owning.kill()
    observe = LocalJournals.watch

    def observe_and_append(*given: Any) -> LocalWatch:
        opened = observe(*given)
        through.append("a", [{"n": 2}])
        return opened

    monkeypatch.setattr(LocalJournals, "watch", observe_and_append)
    assert watch.next(SOON_S).heads == {first.id: journal(through, "a/0000").head}
    watch.close()


@pytest.fixture
def reads(owning: Child, tmp_path: Path) -> Iterator[FailoverReads]:
    connection = WorkspaceConnection(tmp_path / "data", SWIFT, create=False)
    opened = FailoverReads(connection)
    yield opened
    opened.close()
    connection.close()


def test_what_was_asked_of_an_owner_that_died_is_answered_by_the_next(
    owning: Child, through: hr.Workspace, reads: FailoverReads
) -> None:
    read = journal(through, "a/0000")
    fetch = read.id, read.begin, read.head, 1000
    expected = reads.fetch(*fetch).result(SOON_S)
    assert len(expected) == 1
    owning.stop()
    asked = reads.fetch(*fetch)
    owning.kill()
    assert asked.result(SOON_S) == expected
    assert reads.journal_names([read.id]) == ["a/0000"]
    assert [each.name for each in reads.collections()] == ["a", "b"]
    assert reads.fetch(*fetch).result(SOON_S) == expected


def test_an_owner_that_only_stopped_answers_what_is_asked_again(
    owning: Child, through: hr.Workspace, reads: FailoverReads
) -> None:
    read = journal(through, "a/0000")
    fetch = read.id, read.begin, read.head, 1000
    expected = reads.fetch(*fetch).result(SOON_S)
    owning.stop()
    asked = reads.fetch(*fetch)
    lost = reads._connection.attached
    assert isinstance(lost, RemoteJournals)
    eventually(lambda: lost.is_lost, SOON_S, "the silence")
    owning.resume()
    assert asked.result(SOON_S) == expected


def test_a_reader_does_not_wait_for_ever_for_an_owner_that_stands_still(
    owning: Child, through: hr.Workspace, reads: FailoverReads
) -> None:
    read = journal(through, "a/0000")
    owning.stop()
    with pytest.raises(WorkspaceError, match=f"locked by process {owning.pid}, which cannot be"):
        reads.fetch(read.id, read.begin, read.head, 1000).result(SOON_S)


def test_a_workspace_that_is_known_by_its_address_has_no_next_owner(
    owning: Child, through: hr.Workspace
) -> None:
    """The next process that answers there may own another workspace."""
    read = journal(through, "a/0000")
    owner = WorkspaceDirectory(Path(through.location)).owner()
    assert owner
    service = msgspec.structs.replace(SWIFT.service, token=owner.token)
    connection = WorkspaceConnection(owner.address, hr.Settings(service=service), create=False)
    reads = FailoverReads(connection)
    owning.kill()
    with pytest.raises(PeerLostError):
        reads.fetch(read.id, read.begin, read.head, 1000).result(SOON_S)
    reads.close()
    connection.close()


class LostOwners:
    """Owners that are gone, one after the other, whenever a client asks them."""

    def __init__(self, *, are_of_one_workspace: bool = True) -> None:
        self.finds_next_owner = are_of_one_workspace
        self.attached = self
        self.fetches = self.watches = 0

    def call(self, use: Callable[[Any], Any]) -> Any:
        return use(self)

    def reattach(self, lost: object) -> Any:
        return self

    def fetch(self, *of: object) -> Any:
        self.fetches += 1
        raise PeerLostError("the owner is gone")

    def watch(self, *selectors: hr.Selector) -> Any:
        self.watches += 1
        return self

    def next(self, timeout_s: float) -> Changes:
        raise PeerLostError("the owner is gone")

    def close(self) -> None:
        """Nothing is open."""


def test_nobody_is_asked_who_may_own_another_workspace() -> None:
    owners = LostOwners(are_of_one_workspace=False)
    reads = FailoverReads(cast(WorkspaceConnection, owners))
    watch = FailoverWatch(cast(WorkspaceConnection, owners))
    with pytest.raises(PeerLostError, match="the owner is gone"):
        reads.fetch(JournalId(1), Offset(0), Offset(1), 1).result(SOON_S)
    with pytest.raises(PeerLostError, match="the owner is gone"):
        watch.next(0)
    assert (owners.fetches, owners.watches) == (1, 1)
    reads.close()
    watch.close()


def test_a_reader_gives_up_after_some_owners_that_were_lost() -> None:
    owners = LostOwners()
    reads = FailoverReads(cast(WorkspaceConnection, owners))
    with pytest.raises(PeerLostError, match="the owner is gone"):
        reads.fetch(JournalId(1), Offset(0), Offset(1), 1).result(SOON_S)
    assert owners.fetches == 1 + OWNERS_LOST_MAX
    reads.close()


def test_a_watch_gives_up_after_some_owners_that_were_lost() -> None:
    owners = LostOwners()
    watch = FailoverWatch(cast(WorkspaceConnection, owners))
    with pytest.raises(PeerLostError, match="the owner is gone"):
        watch.next(0)
    assert owners.watches == 1 + OWNERS_LOST_MAX
    watch.close()


def test_who_asks_a_reader_that_is_closed_is_not_left_waiting() -> None:
    owners = LostOwners()
    reads = FailoverReads(cast(WorkspaceConnection, owners))
    reads.close()
    with pytest.raises(PeerLostError, match="the owner is gone"):
        reads.fetch(JournalId(1), Offset(0), Offset(1), 1).result(SOON_S)
    assert owners.fetches == 1


def test_a_call_gives_up_after_some_owners_that_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Journals] = []

    def call_and_lose(journals: Journals) -> None:
        calls.append(journals)
        raise PeerLostError("the owner is gone")

    connection = WorkspaceConnection(tmp_path / "data", SWIFT, create=True)
    monkeypatch.setattr(connection, "reattach", lambda lost: lost)
    with pytest.raises(PeerLostError, match="the owner is gone"):
        connection.call(call_and_lose)
    assert len(calls) == 1 + OWNERS_LOST_MAX
    connection.close()


class ScriptedWatch:
    """A watch that gives these answers, and then loses its owner."""

    def __init__(self, *answers: Changes) -> None:
        self._answers = list(answers)
        self.is_closed = False

    def next(self, timeout_s: float) -> Changes:
        if not self._answers:
            raise PeerLostError("the owner is gone")
        return self._answers.pop(0)

    def close(self) -> None:
        self.is_closed = True


class SuccessiveOwners(LostOwners):
    """A series of owners, each with its watch."""

    def __init__(self, *watches: ScriptedWatch) -> None:
        super().__init__()
        self._watches = list(watches)

    def watch(self, *selectors: hr.Selector) -> Any:
        return self._watches.pop(0)


A, B = (JournalInfo(JournalId(n), f"c/000{n}", Offset(0), Offset(1), 1) for n in (1, 2))


def test_what_an_earlier_owner_told_is_not_told_again() -> None:
    first = ScriptedWatch(Changes([A, B], [], {}), Changes([], [B.id], {A.id: Offset(5)}))
    second = ScriptedWatch(Changes([msgspec.structs.replace(A, head=Offset(5))], [], {}))
    watch = FailoverWatch(cast(WorkspaceConnection, SuccessiveOwners(first, second)))
    for _ in range(2):
        watch.next(0)
    assert watch.next(0) == Changes([], [], {})
    assert first.is_closed
    watch.close()


def test_a_watch_that_is_closed_meanwhile_leaves_none_at_the_next_owner() -> None:
    second = ScriptedWatch(Changes([A], [], {}))
    watch = FailoverWatch(cast(WorkspaceConnection, SuccessiveOwners(ScriptedWatch(), second)))
    watch.close()
    with pytest.raises(UsageError, match="the watch is closed"):
        watch.next(0)
    assert second.is_closed


def test_a_publisher_knows_that_its_owner_is_gone(owning: Child, through: hr.Workspace) -> None:
    publisher = through.publisher("job")
    assert not publisher.is_lost()
    owning.kill()
    assert publisher.is_lost()
    assert not through.publisher("job").is_lost()
