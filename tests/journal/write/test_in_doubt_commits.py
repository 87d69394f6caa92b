"""Commits whose outcome nobody can tell in time: their errors, and asking later."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.clock import Clock
from headrace.errors import (
    InDoubtError,
    PublishError,
    StorageError,
    TransportError,
    UsageError,
    WorkspaceError,
    from_wire,
    to_wire,
)
from headrace.ids import JournalId, Producer
from headrace.journal.local.producers import COMMITS_REMEMBERED
from headrace.journal.write.commit_id import AppendedFrame, CommitId, parse_commit_id
from headrace.journal.write.pending_commit import PendingCommit
from headrace.journal.write.write_buffer import WriteBuffer
from headrace.testing.crash import Child
from tests.journal.conftest import SETTINGS, column

pytestmark = pytest.mark.crash

COMMITTED, ROLLED_BACK = hr.CommitOutcome.COMMITTED, hr.CommitOutcome.ROLLED_BACK
WAIT_S = 60.0
IMPATIENT = msgspec.structs.replace(
    SETTINGS, service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=0.8)
)
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
    """A process that owns the workspace."""
    with Child(OPEN, root=location, settings=IMPATIENT) as child:
        assert child.run("workspace.address")
        yield child


@pytest.fixture
def through(owning: Child, location: Path) -> Iterator[hr.Workspace]:
    """This process, which works through the owner."""
    with hr.open(location, settings=IMPATIENT) as workspace:
        assert workspace.address is None
        yield workspace


def begun(workspace: hr.Workspace, n: int, name: str = "") -> hr.Transaction:
    tx = workspace.publisher(name).begin()
    tx.append(workspace.collection("c"), [{"n": n}])
    return tx


def numbers(workspace: hr.Workspace) -> list[int]:
    return column(workspace, "c", "n")


def in_doubt(use: Callable[[], object]) -> InDoubtError:
    with pytest.raises(InDoubtError) as raised:
        use()
    return raised.value


def shown(outcome: hr.CommitOutcome) -> list[int]:
    return [1] if outcome is COMMITTED else []


def commit_with_a_stopped_owner(workspace: hr.Workspace, way: str, owning: Child) -> None:
    """Commit a document while the owner is stopped; everything else is done before."""
    collection = workspace.collection("c")
    if way == "append":
        workspace.append(collection, [])
        owning.stop()
        workspace.append(collection, [{"n": 1}])
    elif way == "block":
        with workspace.publisher() as tx:
            tx.append(collection, [{"n": 1}])
            owning.stop()
    else:
        tx = begun(workspace, 1, "job" if way == "named commit" else "")
        owning.stop()
        if way == "pending":
            tx.commit_nowait().result()
        else:
            tx.commit()


# proves G29
@pytest.mark.parametrize("way", ["commit", "named commit", "pending", "block", "append"])
def test_while_the_owner_is_stopped_a_commit_is_in_doubt_and_then_its_outcome_is_told(
    owning: Child, through: hr.Workspace, way: str
) -> None:
    error = in_doubt(lambda: commit_with_a_stopped_owner(through, way, owning))
    assert not isinstance(error, PublishError | TransportError | WorkspaceError)
    assert f"process {owning.pid}" in str(error)
    assert f"ask with ws.outcome('{error.id}') before you repeat it" in error.do
    again = in_doubt(lambda: error.outcome(0.1))
    assert again.id == error.id
    owning.resume()
    outcome = error.outcome(WAIT_S)
    assert numbers(through) == shown(outcome)
    assert again.outcome(WAIT_S) is outcome
    assert through.outcome(error.id) is outcome
    if outcome is ROLLED_BACK:
        with through.publisher("again") as tx:
            tx.append("c", [{"n": 1}])
    assert numbers(through) == [1]


# proves G29
@pytest.mark.parametrize("name", ["", "job"])
def test_a_transaction_that_was_in_doubt_is_honest_about_it(
    owning: Child, through: hr.Workspace, name: str
) -> None:
    tx = begun(through, 1, name)
    owning.stop()
    error = in_doubt(tx.commit)
    assert in_doubt(tx.rollback).id == error.id
    assert in_doubt(tx.commit).id == error.id
    assert not tx.is_open
    owning.resume()
    if error.outcome(WAIT_S) is COMMITTED:
        tx.commit()
        with pytest.raises(UsageError, match="has committed and cannot be rolled back"):
            tx.rollback()
    else:
        with pytest.raises(PublishError, match="was rolled back"):
            tx.commit()
        tx.rollback()
    with pytest.raises(UsageError, match="the transaction has ended"):
        tx.commit()
    outcome = error.outcome()
    assert numbers(through) == shown(outcome)


# proves G29
def test_whoever_takes_over_from_a_killed_owner_knows_the_outcome(
    owning: Child, through: hr.Workspace
) -> None:
    tx = begun(through, 1)
    owning.stop()
    error = in_doubt(tx.commit)
    owning.kill()
    assert error.outcome(WAIT_S) is ROLLED_BACK
    assert through.address
    assert numbers(through) == []


# proves G29
def test_another_process_can_ask_after_the_one_in_doubt_is_gone(
    location: Path, owning: Child
) -> None:
    with Child(OPEN, root=location, settings=IMPATIENT) as doomed:
        doomed.run('publisher = workspace.publisher("job"); tx = publisher.begin()')
        doomed.run('tx.append("c", [{"n": 1}])')
        owning.stop()
        received = in_doubt(lambda: doomed.run('tx.commit(b"one")'))
        doomed.kill()
    with pytest.raises(UsageError, match=rf"another process.*call ws\.outcome\('{received.id}'\)"):
        received.outcome()
    owning.resume()
    with hr.open(location, settings=IMPATIENT) as workspace:
        outcome = workspace.outcome(received.id, WAIT_S)
        assert numbers(workspace) == shown(outcome)
        assert workspace.publisher("job").payload == (b"one" if outcome is COMMITTED else b"")


def test_an_error_in_doubt_keeps_its_id_on_the_wire_and_in_a_pickle() -> None:
    id = str(CommitId("0a1b2c3d", 7, 8, Clock(9)))  # type: ignore[arg-type]
    error = InDoubtError(f"nobody knows yet whether transaction {id} committed: why", do="ask")
    for received in (pickle.loads(pickle.dumps(error)), from_wire(*to_wire(error))):
        assert isinstance(received, InDoubtError)
        assert received.id == id


@pytest.mark.parametrize("first", [None, AppendedFrame(JournalId(3), Clock(4))])
def test_the_text_of_an_id_says_all_of_it(first: AppendedFrame | None) -> None:
    id = CommitId("0a1b2c3d", 7, 8, Clock(9), JournalId(5 if first else 0), first)  # type: ignore[arg-type]
    assert parse_commit_id(str(id)) == id


def test_an_outcome_is_not_taken_for_true_or_false() -> None:
    with pytest.raises(TypeError, match="compare it"):
        bool(ROLLED_BACK)


# proves G27, G29
def test_what_is_no_id_or_one_of_another_workspace_is_refused(
    tmp_path: Path, owner: hr.Workspace
) -> None:
    owner.collection("c", "n long")
    pending = begun(owner, 1).commit_nowait()
    pending.result()
    assert owner.outcome(pending.id) is COMMITTED
    with hr.open(tmp_path / "other", settings=SETTINGS) as other:
        with pytest.raises(UsageError, match="was sent to another workspace"):
            other.outcome(pending.id)
        for nonsense in ("", "x", pending.id[:-1], f"{pending.id}-1", 7):
            with pytest.raises(UsageError, match="is not the id of a commit"):
                other.outcome(nonsense)  # type: ignore[arg-type]


# proves G29
def test_a_commit_of_too_many_holders_ago_stays_in_doubt(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long")
    pending = begun(workspace, 0, "job").commit_nowait()
    pending.result()
    for n in range(COMMITS_REMEMBERED - 1):
        begun(workspace, n + 1, "job").commit()
    assert workspace.outcome(pending.id) is COMMITTED
    begun(workspace, 100, "job").commit()
    error = in_doubt(lambda: workspace.outcome(pending.id, WAIT_S))
    assert "the owner remembers the last 64 holders of a publisher" in str(error)
    assert error.what.count("-") == 3, "no number but the id"
    assert error.do == "read back what the transaction wrote"


# proves G29
def test_a_commit_is_in_doubt_when_its_workspace_was_closed_over_it(
    owning: Child, through: hr.Workspace, location: Path
) -> None:
    tx = begun(through, 1)
    owning.stop()
    pending = tx.commit_nowait()
    through.close()
    error = in_doubt(pending.result)
    assert "the workspace is closed" in str(error)
    owning.resume()
    with hr.open(location, settings=IMPATIENT) as workspace:
        outcome = workspace.outcome(error.id, WAIT_S)
        assert numbers(workspace) == shown(outcome)


# proves G29
def test_what_a_failing_disk_can_neither_sync_nor_cut_is_in_doubt(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with hr.open(location, settings=SETTINGS) as workspace:
        workspace.collection("c", "n long")
        tx = begun(workspace, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(os, "ftruncate", fail)
            error = in_doubt(tx.commit)
        assert "could not be cut" in str(error)
        with pytest.raises(StorageError):
            workspace.append("c", [{"n": 2}])
        assert in_doubt(tx.rollback).id == error.id
    with hr.open(location, settings=SETTINGS) as again:
        assert again.outcome(error.id) is COMMITTED
        assert numbers(again) == [1]


# proves G29
def test_what_is_sent_before_the_commit_is_not_in_doubt_when_the_disk_fails(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with hr.open(location, settings=SETTINGS) as workspace:
        workspace.collection("c", "n long")
        tx = workspace.publisher().begin()
        part = workspace.join(tx.invite())
        part.append("c", [{"n": 1}])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(os, "ftruncate", fail)
            with pytest.raises(PublishError, match=r"the transaction was rolled back.*not be cut"):
                part.prepare()
    with hr.open(location, settings=SETTINGS) as again:
        assert numbers(again) == []


# proves G29
def test_after_ctrl_c_in_a_commit_rolling_back_does_not_deny_it(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    workspace.collection("c", "n long")
    tx = begun(workspace, 1)
    with monkeypatch.context() as patch:
        patch.setattr(PendingCommit, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
    with pytest.raises(UsageError, match="has committed and cannot be rolled back"):
        tx.rollback()
    assert numbers(workspace) == [1]


def appended(workspace: hr.Workspace, n: int) -> CommitId:
    """Return the id of an append of one frame."""
    collection = workspace.collection("c")
    workspace.append(collection, [{"n": n}])
    [journal] = workspace.journals()
    *_, frame = workspace.frames(journal)
    [writer] = workspace._pool._idle
    workspace_digits = begun(workspace, 0).commit_nowait().id[:8]
    return CommitId(
        workspace_digits,
        frame.producer,
        writer.lease.holder,
        frame.clock,
        frame.journal,
        AppendedFrame(frame.journal, frame.clock),
    )


# proves G29
def test_the_first_and_the_last_frame_of_an_append_tell_what_became_of_it(
    workspace: hr.Workspace,
) -> None:
    workspace.collection("c", "n long")
    id = appended(workspace, 1)
    later = Clock(id.clock + 1)
    assert workspace.outcome(str(id)) is COMMITTED
    partial = msgspec.structs.replace(id, clock=later)
    assert workspace.outcome(str(partial)) is hr.CommitOutcome.PARTIAL
    none = msgspec.structs.replace(partial, first=AppendedFrame(id.journal, later))
    assert workspace.outcome(str(none)) is ROLLED_BACK
    of_another = msgspec.structs.replace(id, producer=Producer(id.producer ^ 1))
    assert workspace.outcome(str(of_another)) is ROLLED_BACK


# proves G29
def test_an_append_whose_journal_lost_what_would_tell_stays_in_doubt(
    owner: hr.Workspace,
) -> None:
    owner.collection("c", "n long", retention_bytes=1)
    id = appended(owner, 1)
    for n in range(3):
        owner.append("c", [{"n": n}])
    owner.maintain()
    why = "retention has removed the part of journal c/0000 that would tell"
    assert why in str(in_doubt(lambda: owner.outcome(str(id))))
    later = Clock(id.clock + (1 << 40))
    unseen = msgspec.structs.replace(id, clock=later, first=AppendedFrame(id.journal, later))
    assert owner.outcome(str(unseen)) is ROLLED_BACK
    owner.delete_collection("c")
    why = "journal c/0000, which would tell, was deleted"
    assert why in str(in_doubt(lambda: owner.outcome(str(id))))


# proves G29
def test_a_large_append_that_is_broken_off_is_never_called_committed(
    owning: Child, through: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = through.collection("c")
    long = "x" * SETTINGS.journal.transaction_buffer_bytes
    through.append(collection, [])
    send = WriteBuffer.send
    sent: list[Future[Any]] = []

    def break_off(*given: object, **named: object) -> object:
        if len(sent) == 2:
            owning.kill()
        sent.append(send(*given, **named))  # type: ignore[arg-type]
        if len(sent) == 2:
            sent[-1].result()
        return sent[-1]

    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "send", break_off)
        error = in_doubt(
            lambda: through.append(collection, [{"n": n, "text": long} for n in range(5)])
        )
    assert "only some of its documents are there" in str(error)
    assert error.outcome() is hr.CommitOutcome.PARTIAL
    assert numbers(through) == [0, 1]


# proves G29
def test_an_append_that_no_owner_took_is_not_called_appended(
    owning: Child, through: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = WriteBuffer.send

    def send_too_late(*given: Any) -> Future[Any]:
        owning.kill()
        return send(*given)

    through.append(through.collection("c"), [])
    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "send", send_too_late)
        with pytest.raises(PublishError, match=r"nothing was appended: .*; append it again"):
            through.append("c", [{"n": 1}])
    assert numbers(through) == []
