"""Commits and appends whose owner is lost or refuses them half-way."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import headrace as hr
from headrace.errors import (
    FencedError,
    InDoubtError,
    PeerLostError,
    PublishError,
    StorageError,
    UsageError,
    WorkspaceError,
)
from headrace.journal.contract import CommitRequest
from headrace.journal.write.commit_id import AppendedFrame, CommitId, workspace_digits
from headrace.journal.write.pending_commit import OutcomeInquiry
from headrace.journal.write.write_buffer import WriteBuffer
from tests.journal.conftest import SETTINGS, column

COMMITTED, ROLLED_BACK = hr.CommitOutcome.COMMITTED, hr.CommitOutcome.ROLLED_BACK
WAIT_S = 60.0
LONG = "x" * SETTINGS.journal.transaction_buffer_bytes
SEND = WriteBuffer.send


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


# proves G29
@pytest.mark.parametrize("name", ["", "job"])
def test_a_commit_that_is_asked_for_before_it_arrives_never_commits(
    workspace: hr.Workspace, name: str
) -> None:
    workspace.collection("c", "n long")
    tx = begun(workspace, 1, name)
    id = str(tx._inquiry(CommitRequest(tx._writer.clock.take())).id)
    assert workspace.outcome(id) is ROLLED_BACK
    with pytest.raises(FencedError, match="was taken over or lost its lease"):
        tx.commit()
    with pytest.raises(UsageError, match="the transaction has ended"):
        tx.commit()
    assert workspace.outcome(id) is ROLLED_BACK
    begun(workspace, 2, name).commit()
    assert numbers(workspace) == [2]


# proves G29
def test_an_append_that_is_asked_for_before_it_arrives_never_shows(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long")
    workspace.append("c", [{"n": 1}])
    [journal] = workspace.journals()
    [writer] = workspace._pool._idle
    clock, lease = writer.clock.take(), writer.lease
    first = AppendedFrame(journal.id, clock)
    digits = workspace_digits(lease.workspace)
    id = CommitId(digits, lease.producer, lease.holder, clock, journal.id, first)
    assert workspace.outcome(str(id)) is ROLLED_BACK
    with pytest.raises(FencedError):
        writer.journals.rollback(lease.producer, lease.holder)


# proves G29
def test_an_outcome_is_asked_for_until_somebody_can_tell(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.collection("c", "n long")
    pending = begun(owner, 1).commit_nowait()
    pending.result()
    ask, refusals = OutcomeInquiry.ask, [WorkspaceError("nobody can be reached")] * 2

    def ask_in_vain(inquiry: OutcomeInquiry, *, fence: bool = True) -> hr.CommitOutcome:
        if refusals:
            raise refusals.pop()
        return ask(inquiry, fence=fence)

    monkeypatch.setattr(OutcomeInquiry, "ask", ask_in_vain)
    assert owner.outcome(pending.id, WAIT_S) is COMMITTED
    assert not refusals


def test_a_writer_that_was_fenced_before_its_commit_was_sent_is_not_used_again(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    collection = workspace.collection("c", "n long, text string")
    tx = begun(workspace, 1)
    tx.append(collection, [{"n": 2, "text": 2 * LONG}])
    assert tx._buffer.sent
    tx._inquiry(CommitRequest(tx._writer.clock.take())).ask()
    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "seal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
    begun(workspace, 3).commit()
    assert numbers(workspace) == [3]


# proves G29
def test_an_append_of_which_a_later_part_is_refused_is_partial(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Future[Any]] = []

    def send_and_lose_the_lease(outgoing: WriteBuffer, *given: Any) -> Future[Any]:
        sent.append(SEND(outgoing, *given))
        if len(sent) == 1:
            sent[0].result()
            lease = outgoing.writer.lease
            outgoing.writer.journals.close_publisher(lease.producer, lease.holder)
        return sent[-1]

    workspace.collection("c", "n long, text string")
    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "send", send_and_lose_the_lease)
        error = in_doubt(lambda: workspace.append("c", [{"n": n, "text": LONG} for n in range(5)]))
    assert "only some of its documents are there" in str(error)
    assert numbers(workspace) == [0]
    workspace.append("c", [{"n": 9}])


# proves G29
def test_an_append_that_breaks_off_after_what_it_sent_is_partial(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Future[Any]] = []

    def send_and_break_off(*given: Any) -> Future[Any]:
        sent.append(SEND(*given))
        sent[-1].result()
        if len(sent) == 2:
            raise PeerLostError("the owner is gone", do="ask the next")
        return sent[-1]

    owner.collection("c", "n long, text string")
    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "send", send_and_break_off)
        error = in_doubt(lambda: owner.append("c", [{"n": n, "text": LONG} for n in range(5)]))
    assert error.outcome() is hr.CommitOutcome.PARTIAL
    assert numbers(owner) == [0, 1]
    # Asking ended the lease of the writer.
    owner.append("c", [{"n": 9}])
    assert numbers(owner) == [0, 1, 9]


# proves G29
def test_after_ctrl_c_when_the_commit_was_sent_it_is_not_denied_and_the_publisher_goes_on(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_and_interrupt(*given: Any) -> None:
        SEND(*given).result()
        raise KeyboardInterrupt

    workspace.collection("c", "n long")
    publisher = workspace.publisher("job")
    tx = publisher.begin()
    tx.append("c", [{"n": 1}])
    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "send", send_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
    with pytest.raises(UsageError, match="has committed and cannot be rolled back"):
        tx.rollback()
    with publisher as tx:
        tx.append("c", [{"n": 2}])
    assert numbers(workspace) == [1, 2]


def test_a_transaction_whose_owner_is_lost_over_an_append_has_ended(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        raise PeerLostError("the owner is gone")

    collection = owner.collection("c", "n long, text string")
    tx = owner.publisher().begin()
    monkeypatch.setattr(WriteBuffer, "send", lose)
    with pytest.raises(PublishError, match="the transaction was rolled back: the owner is gone"):
        tx.append(collection, [{"n": 1, "text": 2 * LONG}])
    with pytest.raises(UsageError, match="the transaction has ended"):
        tx.append(collection, [{"n": 2}])


# proves G29
def test_a_disk_that_took_nothing_leaves_no_doubt(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log need not cut anything, so it does not matter that it cannot."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    owner.collection("c", "n long")
    tx = begun(owner, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(StorageError, match="No space left on device"):
            tx.commit()
    tx.rollback()
    owner.close()
    with hr.open(owner.location, settings=SETTINGS) as again:
        assert numbers(again) == []
