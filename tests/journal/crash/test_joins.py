"""A transaction of four processes commits or vanishes as one, whichever of them dies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.testing.crash import Child, KillPoint, chosen_seed, eventually
from tests.journal.crash import oracle
from tests.journal.crash.joint_transaction import (
    COMMIT,
    COORDINATOR,
    EVERYBODY,
    SETTINGS,
    STEPS,
    WAIT_S,
    JointTransaction,
    Kill,
    Outcome,
    Step,
)
from tests.journal.crash.publisher_process import open_workspace

DURING_S_MAX = 0.002
TRIES = 3
SHARES = (0.01, 0.5, 0.99)
COMMIT_POINTS = 2 + len(SHARES) + 2
"""A commit is a write and a sync."""


def kills(chance: random.Random, commits: int) -> list[Kill]:
    """Yield kills of each process at each step, and `commits` kills during the commit."""
    before = [Kill(who, step) for who in EVERYBODY for step in range(len(STEPS) + 1)]
    during = [
        Kill(who, number, chance.uniform(0, DURING_S_MAX))
        for number, (who, _) in enumerate(STEPS[:COMMIT])
    ]
    sent = [Kill(COORDINATOR, COMMIT, chance.uniform(0, DURING_S_MAX)) for _ in range(commits)]
    return before + during + sent


def expected(kill: Kill) -> set[Outcome]:
    last = COMMIT if kill.who == COORDINATOR else STEPS.index(Step(kill.who, "prepare"))
    if kill.step > last:
        return {"committed"}
    if kill.during_s is not None and kill.step == COMMIT:
        return {"unknown", "committed"}
    return {"vanished"}


class Ledger:
    """The verdicts on all transactions of a workspace, to compare with what is there."""

    def __init__(self) -> None:
        self._told = oracle.Verdicts()
        self._visible = 0

    def check(self, root: Path, tx: int, outcome: Outcome) -> bool:
        """Check that all four parts are there or none. Returns True if they are."""
        parts = {(who, tx) for who in EVERYBODY}
        if outcome == "committed":
            self._told.committed |= parts
        if outcome == "vanished":
            self._told.refused |= parts
        with open_workspace(root, SETTINGS) as workspace:
            eventually(lambda: not list(oracle.open_spans(workspace)), WAIT_S, "its end")
            before, self._visible = self._visible, oracle.check(workspace, self._told)
        assert self._visible - before in (0, len(EVERYBODY)), "a part of it"
        return self._visible > before


def kill_members(root: Path, chosen: Sequence[Kill]) -> None:
    ledger = Ledger()
    undecided = []
    with (
        Child(
            "from tests.journal.crash.joint_transaction import Part\npart = Part(root, 'owner')",
            root=root,
        ) as owner,
        JointTransaction() as joint,
    ):
        owner.answer(WAIT_S)
        joint.open(root)
        assert joint.run(0) == "committed"
        assert ledger.check(root, 0, "committed")
        for tx, kill in enumerate(chosen, 1):
            outcome = joint.run(tx, kill)
            assert outcome in expected(kill), kill
            is_there = ledger.check(root, tx, outcome)
            if outcome == "unknown":
                undecided.append(is_there)
    print(
        f"{len(chosen)} kills; of {len(undecided)} commits that were not answered"
        f" {sum(undecided)} were done"
    )


def owner_changes(root: Path, joint: JointTransaction) -> tuple[int, list[bool]]:
    """Return how many changes precede the steps, and which changes of the steps are writes."""
    writes: list[bool]
    with Child(
        "from tests.journal.crash import joint_transaction\n"
        "writes = []; joint_transaction.count_in(writes)\n"
        "part = joint_transaction.Part(root, 'owner')",
        root=root,
    ) as owner:
        owner.answer(WAIT_S)
        joint.open(root)
        before = owner.run("len(writes)")
        assert joint.run(0) == "committed"
        writes = owner.run("writes")
        joint.leave()
    return before, writes[before:]


def kill_owner(root: Path, chosen: Sequence[KillPoint], joint: JointTransaction) -> None:
    """At every point, each tried until it is reached.

    It may not be: the more of what an owner writes shares a sync, the fewer changes it makes.
    """
    outcomes = []
    kills = 0
    for number, point in enumerate(chosen):
        for again in range(TRIES):
            outcome, is_killed = run_until_killed(root / f"{number}-{again}", point, joint)
            outcomes.append(outcome)
            kills += is_killed
            if is_killed:
                break
    assert kills >= len(chosen) / 2
    print(f"{kills} kills of the owner; {outcomes.count('committed')} committed")


def run_until_killed(
    location: Path, point: KillPoint, joint: JointTransaction
) -> tuple[Outcome, bool]:
    """Run a transaction whose owner dies at a point; return its end, and if it died."""
    with Child(
        "from tests.journal.crash import joint_transaction\n"
        "joint_transaction.die_at(point); part = joint_transaction.Part(root, 'owner')",
        root=location,
        point=point,
    ) as owner:
        owner.answer(WAIT_S)
        joint.open(location)
        outcome = joint.run(1)
        if outcome != "committed":
            owner.wait(WAIT_S)
        is_killed = not owner.is_alive
        joint.leave()
    Ledger().check(location, 1, outcome)
    return outcome, is_killed


def points(before: int, writes: Sequence[bool]) -> list[KillPoint]:
    found = []
    for change, is_write in enumerate(writes, before):
        found += [KillPoint(change, "before"), KillPoint(change, "after")]
        if is_write:
            found += [KillPoint(change, "torn", share) for share in SHARES]
    return found


# proves G1, G2, G3
def test_a_member_is_killed_at_some_step_and_all_four_parts_show_or_none(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=41))
    chosen = chance.sample(kills(chance, commits=0), 6) + kills(chance, commits=2)[-2:]
    kill_members(tmp_path / "workspace", chosen)


# proves G1, G2, G3
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_member_is_killed_at_every_step(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    kill_members(tmp_path / "workspace", kills(chance, commits=40))


# proves G1, G2, G3
def test_the_owner_is_killed_at_some_change_and_all_four_parts_show_or_none(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=42))
    with JointTransaction() as joint:
        found = points(*owner_changes(tmp_path / "rehearsal", joint))
        while_committing = chance.sample(found[-COMMIT_POINTS:], 4)
        earlier = chance.sample(found[:-COMMIT_POINTS], 2)
        kill_owner(tmp_path / "deaths", earlier + while_committing, joint)


# proves G1, G2, G3
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_the_owner_is_killed_at_every_change_of_its_disk(tmp_path: Path) -> None:
    with JointTransaction() as joint:
        found = points(*owner_changes(tmp_path / "rehearsal", joint))
        kill_owner(tmp_path / "deaths", found, joint)
