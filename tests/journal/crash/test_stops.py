"""Owners are stopped at every step of a commit: verdicts match what is there."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

import msgspec
import pytest

import headrace as hr
from headrace.errors import HeadraceError, PublishError
from headrace.testing.crash import Child, chosen_seed, eventually
from tests.journal.crash.publisher_process import COLLECTIONS, SETTINGS, documents, open_workspace
from tests.journal.crash.scripted_work import NEVER_S
from tests.journal.crash.stopping_owner import STEPS

Way = Literal["commit", "block", "pending", "append"]
WAYS: tuple[Way, ...] = get_args(Way)
CommitOutcome = hr.CommitOutcome
AT_ONCE = 8
WAIT_S = 120.0
PATIENT = msgspec.structs.replace(
    SETTINGS,
    log=hr.LogSettings(idle_seal_s=NEVER_S),
    journal=msgspec.structs.replace(SETTINGS.journal, keeper_interval_s=NEVER_S),
    service=hr.ServiceSettings(),
)
"""The default time-outs; nothing but commits touches the disk."""
IMPATIENT = msgspec.structs.replace(
    PATIENT, service=hr.ServiceSettings(heartbeat_s=0.1, silence_s=0.8)
)


class Round(NamedTuple):
    way: Way
    step: str
    """One of STEPS, or "sent": before the owner has taken anything."""
    stop_s: float | None
    """None: until the client was told something."""
    then: Literal["resume", "kill"]


class Stage:
    """An owner in a process of its own, and this process as its client."""

    def __init__(self, root: Path, settings: hr.Settings) -> None:
        self._root = root
        self._settings = settings
        self._stack = ExitStack()
        self._transactions = 0
        self._expected: Counter[tuple[str, int]] = Counter()
        """How many documents each transaction shows."""
        self.in_doubt = 0
        self.reached = 0
        self._open()

    def _open(self) -> None:
        self._owner = self._stack.enter_context(
            Child(
                "from tests.journal.crash.publisher_process import open_workspace\n"
                "from tests.journal.crash.stopping_owner import StoppingOwner\n"
                "stops = StoppingOwner()\n"
                "workspace = open_workspace(root, settings)",
                root=self._root,
                settings=self._settings,
            )
        )
        assert self._owner.run("workspace.address", WAIT_S)
        self._workspace = self._stack.enter_context(open_workspace(self._root, self._settings))
        assert self._workspace.address is None

    def play(self, round: Round) -> None:
        """Commit while the owner is stopped, and repeat the commit if it was rolled back."""
        self._transactions += 1
        tx = round.way, self._transactions
        error = self._commit_under(round, self._prepare(tx))
        verdict = self._outcome(error)
        if round.then == "kill":
            self._stack.close()
            self._open()
        self._check(tx, verdict)
        if verdict is CommitOutcome.ROLLED_BACK:
            self._prepare(tx)()
            self._check(tx, CommitOutcome.COMMITTED)

    def _prepare(self, tx: tuple[str, int]) -> Callable[[], object]:
        """Do everything but the commit."""
        way, number = tx
        parts = list(documents(way, number, 200 if number % 3 else 4))
        if way == "append":
            collection, rows = parts[0]
            self._workspace.append(collection, [])
            target = self._workspace.collection(collection)
            return lambda: self._workspace.append(target, rows)
        publisher = self._workspace.publisher()
        transaction = publisher.__enter__() if way == "block" else publisher.begin()
        for collection, rows in parts:
            transaction.append(collection, rows)
        # Returns once everything that was sent before has been answered.
        transaction.invite()
        if way == "block":
            return lambda: publisher.__exit__(None, None, None)
        if way == "pending":
            return lambda: transaction.commit_nowait().result()
        return transaction.commit

    def _commit_under(self, round: Round, commit: Callable[[], object]) -> HeadraceError | None:
        verdict: Future[HeadraceError | None] = Future()
        committing = threading.Thread(target=_run, args=(commit, verdict))
        if round.step == "sent":
            self._owner.stop()
        else:
            self._owner.run("stops.arm(step)", WAIT_S, step=round.step)
        committing.start()
        eventually(lambda: self._owner.is_stopped or verdict.done(), WAIT_S, "the stop")
        self.reached += self._owner.is_stopped
        if round.stop_s is None:
            committing.join(WAIT_S)
        else:
            threading.Event().wait(round.stop_s)
        if round.then == "kill":
            self._owner.kill()
        else:
            self._owner.resume()
        error = verdict.result(WAIT_S)
        committing.join(WAIT_S)
        return error

    def _outcome(self, error: HeadraceError | None) -> CommitOutcome:
        """Return the final outcome; everybody who asks later must get the same."""
        if error is None:
            return CommitOutcome.COMMITTED
        if not isinstance(error, hr.InDoubtError):
            assert isinstance(error, PublishError), repr(error)
            return CommitOutcome.ROLLED_BACK
        self.in_doubt += 1
        outcome = error.outcome(WAIT_S)
        assert self._workspace.outcome(error.id, WAIT_S) is outcome
        return outcome

    def _check(self, tx: tuple[str, int], verdict: CommitOutcome) -> None:
        """Check that the verdicts on this and all earlier transactions hold."""
        seen: Counter[tuple[str, int]] = Counter()
        for name in COLLECTIONS:
            table = self._workspace.table(name)
            keys = zip(*(table.column(c).to_pylist() for c in ("label", "tx", "part")), strict=True)
            parts = Counter(keys)
            assert set(parts.values()) <= {1}, "documents are there twice"
            seen.update((label, number) for label, number, _ in parts)
        whole = self._whole(tx)
        if verdict is CommitOutcome.PARTIAL:
            assert tx[0] == "append"
            assert 0 < seen[tx] < whole
            whole = seen[tx]
        if verdict is not CommitOutcome.ROLLED_BACK:
            self._expected[tx] = whole
        assert seen == self._expected, f"{tx} was {verdict}"

    def _whole(self, tx: tuple[str, int]) -> int:
        parts = list(documents(*tx, 200 if tx[1] % 3 else 4))
        return sum(len(rows) for _, rows in (parts[:1] if tx[0] == "append" else parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def _run(commit: Callable[[], object], verdict: Future[HeadraceError | None]) -> None:
    try:
        commit()
        verdict.set_result(None)
    except HeadraceError as error:
        verdict.set_result(error)


def play(root: Path, settings: hr.Settings, rounds: Sequence[Round]) -> tuple[int, int]:
    """Return how often the owner stopped at its step, and how often the client was in doubt."""
    with Stage(root, settings) as stage:
        for each in rounds:
            try:
                stage.play(each)
            except BaseException as error:
                error.add_note(f"{each}")
                raise
        return stage.reached, stage.in_doubt


# proves G1, G2, G29
def test_what_is_told_of_a_commit_whose_owner_was_stopped_is_what_is_there(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=41))
    rounds = [
        Round(chance.choice(WAYS), step, chance.choice((0.2, 1.2, None)), "resume")
        for step in STEPS
    ]
    rounds += [Round("commit", "sent", None, "resume"), Round("append", "sent", None, "resume")]
    for step in chance.sample(STEPS, 3):
        rounds.append(Round(chance.choice(WAYS), step, chance.choice((0.2, None)), "kill"))
    reached, in_doubt = play(tmp_path / "workspace", IMPATIENT, rounds)
    print(f"{reached} stops, {in_doubt} in doubt")
    assert reached == len(rounds)
    assert in_doubt >= 2


# proves G1, G2, G29
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_stops_of_1_to_30_s_at_every_step_of_every_way_to_commit(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    rounds = [
        Round(way, step, chance.uniform(1, 30), then)
        for way in WAYS
        for step in ("sent", *STEPS)
        for then in ("resume", "kill")
    ]
    chance.shuffle(rounds)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        played = threads.map(
            lambda n: play(tmp_path / str(n), PATIENT, rounds[n::AT_ONCE]), range(AT_ONCE)
        )
        counts = list(played)
    reached, in_doubt = (sum(each) for each in zip(*counts, strict=True))
    print(f"{len(rounds)} commits, {reached} stops, {in_doubt} in doubt")
    assert reached == len(rounds)
