"""Transactions with participants; the coordinator is local, and then remote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.errors import FencedError, UsageError
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags
from headrace.testing.crash import eventually
from tests.journal.conftest import SETTINGS, column

LONG = "x" * SETTINGS.journal.transaction_buffer_bytes


@pytest.fixture
def elsewhere(workspace: hr.Workspace) -> Iterator[hr.Workspace]:
    """The workspace that participants use."""
    workspace.collection("a", "n long, text string")
    with hr.open(workspace.location, settings=SETTINGS) as other:
        yield other


def numbers(workspace: hr.Workspace) -> list[int]:
    return sorted(column(workspace, "a", "n"))


# proves G2
def test_parts_of_many_producers_commit_as_one(
    workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    elsewhere.collection("b", "n long")
    with workspace.publisher() as tx:
        tx.append("a", [{"n": 0}])
        for n in range(1, 4):
            with elsewhere.join(tx.invite()) as part:
                assert part.append("a", [{"n": n, "text": LONG}]) == 1
                assert part.append("b", [{"n": n}]) == 1
                tx.include(part.prepare())
        assert numbers(elsewhere) == []
    assert numbers(elsewhere) == [0, 1, 2, 3]
    ends = {
        name: [
            frame
            for journal in workspace.journals(hr.selector(name))
            for frame in workspace.frames(journal, committed=False)
            if frame.flags is Flags.ACK
        ]
        for name in ("a", "b")
    }
    assert [len(acks) for acks in ends.values()] == [4, 3]
    every = sorted(
        (ack.journal, ack.offset, ack.producer, ack.clock) for acks in ends.values() for ack in acks
    )
    for acks in ends.values():
        for ack in acks:
            assert ack.hints is not None
            assert sorted(ack.hints.tolist()) == every


def test_a_coordinator_need_not_write_anything_itself(
    workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    publisher = workspace.publisher("batch")
    tx = publisher.begin()
    part = elsewhere.join(tx.invite())
    part.append("a", [{"n": 1}])
    tx.include(part.prepare())
    tx.commit(b"checkpoint")
    assert numbers(workspace) == [1]
    assert workspace.publisher("batch").payload == b"checkpoint"


# proves G2
def test_who_is_not_included_is_rolled_back(
    workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    tx = workspace.publisher().begin()
    parts = [elsewhere.join(tx.invite()) for _ in range(4)]
    for n, part in enumerate(parts):
        part.append("a", [{"n": n, "text": LONG}])
    winner, loser = parts[0].prepare(), parts[1].prepare()
    parts[2].abandon()
    tx.include(winner)
    tx.commit()
    assert loser != winner
    assert numbers(workspace) == [0]
    with pytest.raises(FencedError, match="was taken over or lost its lease"):
        parts[3].prepare()
    assert_all_ended(workspace)


# proves G2, G3
def test_rolling_back_ends_every_part(workspace: hr.Workspace, elsewhere: hr.Workspace) -> None:
    tx = workspace.publisher().begin()
    invitation = tx.invite()
    assert tx.invite() == invitation
    ready, late = elsewhere.join(invitation), elsewhere.join(invitation)
    for part in (ready, late):
        part.append("a", [{"n": 1, "text": LONG}])
    ready.prepare()
    tx.rollback()
    with pytest.raises(FencedError):
        late.prepare()
    with pytest.raises(FencedError, match="the transaction to join has ended"):
        elsewhere.join(invitation)
    assert numbers(workspace) == []
    assert_all_ended(workspace)


# proves G3
def test_a_participant_that_is_lost_is_rolled_back_and_the_others_commit(
    workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    tx = workspace.publisher().begin()
    tx.append("a", [{"n": 0}])
    with hr.open(workspace.location, settings=SETTINGS) as short:
        lost = short.join(tx.invite())
        lost.append("a", [{"n": 1, "text": LONG}])
        kept = short.join(tx.invite())
        kept.append("a", [{"n": 2, "text": LONG}])
        tx.include(kept.prepare())
    eventually(lambda: ends(workspace) == [0], 20, "the rollback of the lost participant")
    tx.commit()
    assert numbers(workspace) == [0, 2]
    assert_all_ended(workspace)


# proves G3
def test_a_coordinator_that_is_lost_takes_its_participants_with_it(
    owner: hr.Workspace, workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    with hr.open(owner.location, settings=SETTINGS) as short:
        tx = short.publisher().begin()
        part = elsewhere.join(tx.invite())
        part.append("a", [{"n": 1, "text": LONG}])
        tx.include(part.prepare())
        late = workspace.join(tx.invite())
        late.append("a", [{"n": 2, "text": LONG}])
        eventually(lambda: len(raw(owner)) == 2, 20, "the frames of both")
    eventually(lambda: ends(owner) == [0, 0], 20, "the rollback of the participants")
    with pytest.raises(FencedError):
        late.prepare()
    assert numbers(owner) == []
    assert_all_ended(owner)


def test_a_part_that_was_lost_cannot_be_included(
    workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    first, second = workspace.publisher().begin(), workspace.publisher().begin()
    part = elsewhere.join(first.invite())
    part.append("a", [{"n": 1}])
    second.invite()
    second.append("a", [{"n": 2}])
    second.include(part.prepare())
    with pytest.raises(FencedError, match="has left the transaction or did not prepare"):
        second.commit()
    first.rollback()
    assert numbers(workspace) == []
    assert_all_ended(workspace)


def test_a_participant_prepares_once_and_then_writes_no_more(
    workspace: hr.Workspace, elsewhere: hr.Workspace
) -> None:
    tx = workspace.publisher().begin()
    part = elsewhere.join(tx.invite())
    part.append("a", [{"n": 1}])
    tx.include(part.prepare())
    for use in (part.prepare, lambda: part.append("a", [{"n": 2}])):
        with pytest.raises(UsageError, match="has prepared or abandoned; join again"):
            use()
    part.abandon()
    tx.commit()
    assert numbers(workspace) == [1]


@pytest.mark.parametrize("text", ["", "x", "0" * 15, "0" * 17, "G" * 16])
def test_what_is_no_invitation_is_refused(workspace: hr.Workspace, text: str) -> None:
    with pytest.raises(UsageError, match="is not an invitation; pass what `invite` returned"):
        workspace.join(text)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[1,2,3,4"])
def test_what_is_no_part_is_refused_and_the_transaction_goes_on(
    workspace: hr.Workspace, elsewhere: hr.Workspace, text: str
) -> None:
    with workspace.publisher() as tx:
        tx.append("a", [{"n": 1}])
        with pytest.raises(UsageError, match="is not a participant's part; pass what `prepare`"):
            tx.include(text)
    assert numbers(workspace) == [1]


def raw(workspace: hr.Workspace) -> list[Frame]:
    [journal] = workspace.journals(hr.selector("a"))
    return list(workspace.frames(journal, committed=False))


def ends(workspace: hr.Workspace) -> list[int]:
    """Return the clocks of the ACKs; 0 stands for a rollback."""
    return [frame.clock for frame in raw(workspace) if frame.flags is Flags.ACK]


def assert_all_ended(workspace: hr.Workspace) -> None:
    """Assert that every span has its ACK."""
    for journal in workspace.journals():
        open_spans = set()
        for frame in workspace.frames(journal, committed=False):
            if frame.flags is Flags.CONTINUE:
                open_spans.add(frame.producer)
            elif frame.flags is Flags.ACK:
                open_spans.discard(frame.producer)
        assert not open_spans
