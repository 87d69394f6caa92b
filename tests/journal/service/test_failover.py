"""Readers and watchers that outlive the owner of the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import PeerLostError, UsageError, WorkspaceError
from headrace.journal.connection import Connection
from headrace.journal.contract import Changes, JournalInfo
from headrace.journal.failover import FailoverReads
from headrace.journal.local.journals import LocalJournals
from headrace.journal.local.watching import LocalWatch
from headrace.journal.remote import RemoteJournals
from headrace.journal.site import Site
from headrace.testing.crash import Child, eventually

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
    """This process, working through that one."""
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
        made = observe(*given)
        through.append("a", [{"n": 2}])
        return made

    monkeypatch.setattr(LocalJournals, "watch", observe_and_append)
    assert watch.next(SOON_S).heads == {first.id: journal(through, "a/0000").head}
    watch.close()


@pytest.fixture
def reads(owning: Child, tmp_path: Path) -> Iterator[FailoverReads]:
    connection = Connection(tmp_path / "data", SWIFT, create=False)
    made = FailoverReads(connection)
    yield made
    made.close()
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
    """Who answers there next may own another workspace."""
    read = journal(through, "a/0000")
    owner = Site(Path(through.place)).owner()
    assert owner
    service = msgspec.structs.replace(SWIFT.service, token=owner.token)
    connection = Connection(owner.address, hr.Settings(service=service), create=False)
    reads = FailoverReads(connection)
    owning.kill()
    with pytest.raises(PeerLostError):
        reads.fetch(read.id, read.begin, read.head, 1000).result(SOON_S)
    reads.close()
    connection.close()
