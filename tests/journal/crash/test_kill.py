"""`kill -9` of the owner of a workspace, of its clients, and of all, again and again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.testing.crash import chosen_seed
from tests.journal.crash.process_group import ProcessGroup, Victims


def kill_again_and_again(root: Path, seed: str, rounds: list[Victims]) -> int:
    root.mkdir()
    with ProcessGroup(root, seed) as crew:
        for victims in rounds:
            crew.round(victims)
        crew.stop()
        crew.reopen()
        return crew.deaths


# proves G1, G2, G3
def test_what_was_acknowledged_survives_and_the_rest_is_whole_or_gone(tmp_path: Path) -> None:
    seed = chosen_seed(default=11)
    rounds: list[Victims] = ["point", "owner", "other", "all"]
    deaths = kill_again_and_again(tmp_path / "crew", str(seed), rounds)
    assert deaths >= len(rounds)


# proves G1, G2, G3
@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_no_kill_of_two_hundred_loses_or_tears_a_transaction(tmp_path: Path) -> None:
    seed = chosen_seed()
    chance = random.Random(seed)
    deaths = 0
    while deaths < 200:
        kinds: list[Victims] = ["point", "point", "owner", "other", "all"]
        rounds = chance.choices(kinds, k=10)
        deaths += kill_again_and_again(tmp_path / f"{deaths}", f"{seed}/{deaths}", rounds)
