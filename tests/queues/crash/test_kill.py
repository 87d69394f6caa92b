"""`kill -9` of producers, workers and the owner of the workspace, again and again."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.testing.crash import Child, KillPoint, chosen_seed, eventually
from tests.queues.crash import oracle

PROCESSES = 3
GROWTH = 60
"""How many lines must come before the next death, so that there is something to lose."""
WAIT_S = 60.0
CHANGES = 40


class Processes:
    """Processes that produce and work on one workspace, each replaced when it dies."""

    def __init__(self, root: Path, seed: str) -> None:
        root.mkdir()
        self.root = root / "workspace"
        self._seed = seed
        self._chance = random.Random(seed)
        self._lives = 0
        self._children = [self._start(None) for _ in range(PROCESSES)]

    @property
    def verdicts(self) -> list[Path]:
        return sorted(self.root.parent.glob("*.verdicts"))

    def kill_one(self) -> None:
        """Kill the owner, another process, or let the owner die at one of its writes."""
        self._wait_for_growth()
        owner = eventually(
            lambda: WorkspaceDirectory(self.root).owner(), WAIT_S, "somebody owns the workspace"
        )
        alive = [child for child in self._children if child.is_alive]
        ordered = sorted(alive, key=lambda child: child.pid != owner.process)
        victim = ordered[0] if self._chance.random() < 0.6 else self._chance.choice(ordered)
        victim.kill()
        self._children.remove(victim)
        death = KillPoint.random(self._chance, CHANGES) if self._chance.random() < 0.5 else None
        self._children.append(self._start(death))

    def stop(self) -> None:
        self._wait_for_growth()
        with ExitStack() as ending:
            for child in self._children:
                ending.enter_context(child)
            for child in self._children:
                if child.is_alive:
                    _stop(child)

    def kill_all(self) -> None:
        for child in self._children:
            child.kill()

    def _start(self, death: KillPoint | None) -> Child:
        self._lives += 1
        return Child(
            "from tests.queues.crash.chain import Process\n"
            "process = Process(root, verdicts, label, seed, death)",
            root=self.root,
            verdicts=self.root.parent / f"{self._lives}.verdicts",
            label=f"p{self._lives}",
            seed=self._seed,
            death=death,
        )

    def _wait_for_growth(self) -> None:
        wanted = self._lines() + GROWTH
        eventually(lambda: self._goes_on(wanted), WAIT_S, "producers go on")

    def _goes_on(self, wanted: int) -> bool:
        """Replace those that died at a write, and return True once there are enough lines."""
        for dead in [child for child in self._children if not child.is_alive]:
            self._children.remove(dead)
            self._children.append(self._start(None))
        return self._lines() >= wanted

    def _lines(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.verdicts)


def _stop(child: Child) -> None:
    try:
        child.run("process.stop()")
    except (EOFError, ConnectionError):
        child.wait(WAIT_S)  # It died at a write of its last moments.


def kill_again_and_again(root: Path, seed: str, deaths: int) -> None:
    processes = Processes(root, seed)
    try:
        for _ in range(deaths):
            processes.kill_one()
        processes.stop()
    finally:
        processes.kill_all()
    count = oracle.check(processes.root, processes.verdicts)
    print(f"{count} messages survived {deaths} deaths")
    assert count >= GROWTH


# proves G15
def test_no_kill_loses_or_repeats_a_message(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path / "run", str(chosen_seed(default=5)), 6)


# proves G15
@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_no_kill_of_two_hundred_loses_or_repeats_a_message(tmp_path: Path) -> None:
    seed = chosen_seed()
    for run in range(10):
        kill_again_and_again(tmp_path / str(run), f"{seed}/{run}", 20)
