"""`kill -9` at any moment: while appending, in the middle of a write, and during the repair."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.log import Log
from headrace.testing.power import RecordedDisk
from tests.log.append_process import payload
from tests.log.recorded_log import contents

pytestmark = pytest.mark.crash

PROJECT = Path(__file__).parents[2]


def run_until_killed(root: Path, kill_at: int, lines: int) -> int:
    """Return the highest number that the log acknowledged before the process died, or -1."""
    command = [sys.executable, "-m", "tests.log.append_process", str(root), str(kill_at)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        acknowledged = [int(line) for line, _ in zip(process.stdout, range(lines), strict=False)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
    assert process.returncode == -9
    return max(acknowledged, default=-1)


def numbers_left(root: Path) -> int:
    """Return how many numbers are left; they must be the first ones, in order, unchanged."""
    log = Log(RecordedDisk({path.name: path.read_bytes() for path in root.iterdir()}))
    found = [data for _, data in contents(log)]
    log.close()
    assert found == [payload(number) for number in range(len(found))]
    return len(found)


def kill_again_and_again(root: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    root.mkdir()
    survived = -1
    for turn in range(rounds):
        kill_at = (-1, chance.randrange(4), chance.randrange(4, 90))[turn % 3]
        lines = 1 + chance.randrange(120)
        survived = max(survived, run_until_killed(root, kill_at, lines))
        assert numbers_left(root) > survived, f"seed {seed}, round {turn}"
    assert survived > rounds


def test_what_was_acknowledged_survives_any_kill(tmp_path: Path) -> None:  # proves G1, G4
    kill_again_and_again(tmp_path / "log", rounds=12, seed=7)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
def test_what_was_acknowledged_survives_many_kills(tmp_path: Path, seed: int) -> None:
    # proves G1, G4
    kill_again_and_again(tmp_path / "log", rounds=40, seed=seed)
