"""`kill -9` of members and of the coordinator while transactions flow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.testing.crash import chosen_seed
from tests.shuffle.crash.process_group import ProcessGroup, Victim


def kill_again_and_again(folder: Path, seed: str, rounds: list[Victim]) -> ProcessGroup:
    with ProcessGroup(folder, seed) as group:
        for victim in rounds:
            group.round(victim)
        group.leave_a_replay()
        group.finish()
        return group


# proves G5, G6, G7, G9, G10, G13
def test_what_was_committed_is_shown_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = chosen_seed(default=3)
    rounds: list[Victim] = ["member", "coordinator", "both"] * 2
    group = kill_again_and_again(tmp_path, str(seed), rounds)
    coordinators = 1 + len(rounds) - rounds.count("member")
    assert group.deaths >= coordinators
    assert group.replays == 1


# proves G5, G6, G7, G9, G10, G13
@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_no_kill_of_a_hundred_loses_or_repeats_a_document(tmp_path: Path) -> None:
    seed = chosen_seed()
    chance = random.Random(seed)
    deaths = 0
    while deaths < 100:
        kinds: list[Victim] = ["member", "coordinator", "both"]
        rounds = chance.choices(kinds, k=12)
        deaths += kill_again_and_again(tmp_path / f"{deaths}", f"{seed}/{deaths}", rounds).deaths
