"""Processes that are stopped, replaced, and continue as if nothing had happened."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import FencedError, PublishError, WorkspaceError
from headrace.journal.contract import Prepared
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.testing.crash import Child, chosen_seed, eventually
from tests.journal.crash import oracle
from tests.journal.crash.publisher_process import SETTINGS, documents, open_workspace

WAIT_S = 30.0
PATIENT = msgspec.structs.replace(
    SETTINGS, service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=WAIT_S)
)
IMPATIENT = msgspec.structs.replace(
    SETTINGS, service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=1.5)
)

OPEN = """
from tests.journal.crash.publisher_process import documents, open_workspace
workspace = open_workspace(root, settings)
def write(part, tx, parts=200):
    for collection, some in documents(label, tx, parts):
        part.append(collection, some)
def send(part):
    part._buffer.send(part._buffer.seal()).result()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


def process(root: Path, settings: hr.Settings, label: str) -> Child:
    return Child(OPEN, root=root, settings=settings, label=label)


def write(part: hr.Transaction | hr.Participant, label: str, tx: int, parts: int = 200) -> None:
    for collection, rows in documents(label, tx, parts):
        part.append(collection, rows)


def verdicts(committed: list[oracle.Tx], refused: list[oracle.Tx]) -> oracle.Verdicts:
    return oracle.Verdicts(set(committed), set(refused))


# proves G2, G3
def test_nothing_of_a_publisher_counts_once_its_name_was_opened_elsewhere(root: Path) -> None:
    with open_workspace(root, PATIENT) as workspace, process(root, PATIENT, "zombie") as zombie:
        zombie.run(
            "publisher = workspace.publisher('name')\n"
            "transaction = publisher.begin(); write(transaction, 1); transaction.commit(b'first')\n"
            "transaction = publisher.begin(); write(transaction, 2); send(transaction)"
        )
        assert set(oracle.open_spans(workspace))
        zombie.stop()
        successor = workspace.publisher("name")
        assert successor.payload == b"first"
        assert not set(oracle.open_spans(workspace)), "what it had pending was not rolled back"
        zombie.resume()
        for refused in (
            "write(transaction, 2); send(transaction)",
            "transaction.invite()",
            "transaction.commit(b'late')",
            "transaction = publisher.begin(); write(transaction, 3); transaction.commit(b'late')",
            "transaction = publisher.begin(); transaction.commit(b'late')",
        ):
            with pytest.raises(FencedError, match="'name'"):
                zombie.run(refused)
        with successor as transaction:
            write(transaction, "successor", 1)
        seen = verdicts([("zombie", 1), ("successor", 1)], [("zombie", 2), ("zombie", 3)])
        assert oracle.check(workspace, seen) == 2
        oracle.check_all_ended(workspace)
        assert workspace.publisher("name").payload == b"first"


# proves G2, G3
def test_nobody_takes_part_in_a_transaction_whose_coordinator_was_replaced(root: Path) -> None:
    with (
        open_workspace(root, PATIENT) as workspace,
        process(root, PATIENT, "zombie") as zombie,
        process(root, PATIENT, "participant") as other,
    ):
        zombie.run(
            "publisher = workspace.publisher('name')\n"
            "transaction = publisher.begin(); write(transaction, 1); send(transaction)"
        )
        invitation = zombie.run("transaction.invite()")
        other.run(
            "early = workspace.join(invitation); write(early, 1)\n"
            "late = workspace.join(invitation); write(late, 2); send(late)",
            invitation=invitation,
        )
        prepared = other.run("early.prepare()")
        zombie.stop()
        workspace.publisher("name")
        for refused in (
            "late.prepare()",
            "late._open = True; write(late, 2); send(late)",
            "workspace.join(invitation)",
        ):
            with pytest.raises(FencedError):
                other.run(refused)
        zombie.resume()
        with pytest.raises(FencedError):
            zombie.run("transaction.include(prepared); transaction.commit()", prepared=prepared)
        assert oracle.check(workspace, oracle.Verdicts()) == 0
        oracle.check_all_ended(workspace)


# proves G1, G2, G3
def test_a_publisher_may_be_stopped_and_replaced_at_any_moment(root: Path, tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=31))
    verdicts = tmp_path / "verdicts"
    verdicts.touch()

    def lines(word: str) -> int:
        return sum(line.startswith(word) for line in verdicts.read_text().splitlines())

    def reach(count: int, word: str) -> None:
        eventually(lambda: lines(word) >= count, WAIT_S, f"{count} lines of {word!r}")

    with (
        open_workspace(root, PATIENT) as workspace,
        Child(
            "from tests.journal.crash.publisher_process import PublisherProcess\n"
            "publishing = PublisherProcess(root, verdicts, 0, 1, seed, None)",
            root=root,
            verdicts=verdicts,
            seed=str(chance.random()),
        ) as zombie,
    ):
        reach(3, "yes named0")
        for round in range(8):
            reach(lines("yes") + chance.randrange(1, 20), "yes")
            zombie.stop()
            successor = workspace.publisher("named0")
            transaction = successor.begin()
            write(transaction, "successor", round)
            transaction.commit(successor.payload)
            openings = lines("opened named0")
            zombie.resume()
            reach(openings + 1, "opened named0")
            seen = oracle.verdicts([verdicts])
            seen.committed |= {("successor", n) for n in range(round + 1)}
            oracle.check(workspace, seen)
        zombie.run("publishing.stop()")
        oracle.check(workspace, oracle.verdicts([verdicts]))
        oracle.check_all_ended(workspace)


class Joined:
    """A coordinator here, and a participant in another process that writes and is stopped."""

    def __init__(self, workspace: hr.Workspace, participant: Child, tx: int) -> None:
        self.transaction = workspace.publisher().begin()
        write(self.transaction, "coordinator", tx)
        participant.run(
            "part = workspace.join(invitation); write(part, tx); send(part)",
            invitation=self.transaction.invite(),
            tx=tx,
        )
        self.producer, self.holder = participant.run(
            "(part._writer.lease.producer, part._writer.lease.holder)"
        )


def await_rollback(workspace: hr.Workspace, joined: Joined) -> None:
    assert joined.producer in oracle.open_spans(workspace)
    eventually(lambda: joined.producer not in oracle.open_spans(workspace), WAIT_S, "its rollback")


# proves G3
def test_a_participant_that_is_silent_for_too_long_is_rolled_back_alone(root: Path) -> None:
    with open_workspace(root, IMPATIENT) as workspace, process(root, IMPATIENT, "silent") as silent:
        joined = Joined(workspace, silent, 1)
        silent.stop()
        await_rollback(workspace, joined)
        joined.transaction.commit()
        seen = verdicts([("coordinator", 1)], [("silent", 1)])
        assert oracle.check(workspace, seen) == 1
        silent.resume()
        with pytest.raises(PublishError, match="was rolled back"):
            silent.run("part.prepare()")
        assert oracle.check(workspace, seen) == 1


# proves G2, G3
def test_a_commit_with_a_participant_that_was_rolled_back_is_refused(root: Path) -> None:
    with open_workspace(root, IMPATIENT) as workspace, process(root, IMPATIENT, "silent") as silent:
        joined = Joined(workspace, silent, 1)
        clock = silent.run("part._writer.clock.take()")
        silent.stop()
        await_rollback(workspace, joined)
        prepared = Prepared(joined.producer, joined.holder, clock)
        joined.transaction.include(msgspec.json.encode(prepared).decode())
        with pytest.raises(FencedError, match="has left the transaction or did not prepare"):
            joined.transaction.commit()
        assert oracle.check(workspace, oracle.Verdicts()) == 0
        eventually(lambda: not set(oracle.open_spans(workspace)), WAIT_S, "everybody's rollback")


# proves G2, G3
def test_a_participant_that_prepared_may_fall_silent(root: Path) -> None:
    with open_workspace(root, IMPATIENT) as workspace, process(root, IMPATIENT, "silent") as silent:
        prepared = Joined(workspace, silent, 1)
        prepared.transaction.include(silent.run("part.prepare()"))
        # The owner rolls back what it did not prepare when it notices the silence.
        unprepared = Joined(workspace, silent, 2)
        silent.stop()
        await_rollback(workspace, unprepared)
        assert prepared.producer in oracle.open_spans(workspace)
        prepared.transaction.commit()
        unprepared.transaction.rollback()
        seen = verdicts([("coordinator", 1), ("silent", 1)], [("coordinator", 2), ("silent", 2)])
        assert oracle.check(workspace, seen) == 2


# proves G1, G3
def test_an_owner_that_is_stopped_keeps_the_workspace_and_others_are_told(root: Path) -> None:
    with process(root, IMPATIENT, "owner") as owner:
        owner.run("transaction = workspace.publisher().begin(); write(transaction, 1)")
        owner.run("transaction.commit()")
        with open_workspace(root, IMPATIENT) as workspace:
            transaction = workspace.publisher("client").begin()
            write(transaction, "client", 1)
            owner.stop()
            pending = transaction.commit_nowait(b"1")
            locked = f"locked by process {owner.pid}, which cannot be reached"
            with pytest.raises(WorkspaceError, match=locked):
                hr.open(root, settings=IMPATIENT)
            with pytest.raises(
                hr.InDoubtError, match=f"nobody knows yet whether .* committed: .*{locked}"
            ):
                pending.result()
            with pytest.raises(WorkspaceError, match=locked):
                workspace.journals()
            owner.resume()
            committed = eventually(lambda: _verdict(pending), WAIT_S, "a verdict") == "yes"
            named = WorkspaceDirectory(root).owner()
            assert named is not None
            assert named.process == owner.pid, "somebody took over from an owner that lived"
            outcome: dict[str, Any] = {"committed" if committed else "refused": {("client", 1)}}
            seen = oracle.Verdicts(**outcome)
            seen.committed.add(("owner", 1))
            assert oracle.check(workspace, seen) == 1 + committed


def _verdict(pending: hr.PendingCommit) -> str | None:
    try:
        pending.result()
    except hr.InDoubtError:
        return None
    except PublishError:
        return "no"
    return "yes"
