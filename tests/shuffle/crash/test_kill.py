"""`kill -9` of members and of the coordinator while transactions flow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.testing.crash import chosen_seed
from tests.shuffle.crash.company import Company, Victim


def kill_again_and_again(folder: Path, seed: str, rounds: list[Victim]) -> Company:
    with Company(folder, seed) as company:
        for victim in rounds:
            company.round(victim)
        company.leave_a_replay()
        company.finish()
        return company


# proves G5, G6, G7, G9, G10, G13
def test_what_was_committed_is_shown_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = chosen_seed(default=3)
    rounds: list[Victim] = ["member", "coordinator", "both"] * 3
    company = kill_again_and_again(tmp_path, str(seed), rounds)
    coordinators = 1 + len(rounds) - rounds.count("member")
    assert company.deaths >= coordinators
    assert company.replays == 1


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
