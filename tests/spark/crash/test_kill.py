"""`kill -9` of every process that a task on Spark has, while transactions flow."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest

from headrace.testing.crash import chosen_seed
from tests.spark.crash.company import Company, Victim
from tests.spark.crash.deadly import SIDES, STEPS, Death


# proves G14
def test_what_a_batch_gives_is_applied_once_whoever_is_killed(tmp_path: Path) -> None:
    with Company(tmp_path, chosen_seed(default=1)) as company:
        company.die(Death("store", "after"))
        company.die(Death("commit", "before"))
        company.die(Death("commit", "after", times=2))
        company.kill("source", "member", "jvm")
        company.finish()


# proves G14
@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_no_kill_of_sixty_loses_or_repeats_a_document(tmp_path: Path) -> None:
    seed = chosen_seed()
    chance = random.Random(seed)
    with Company(tmp_path, seed) as company:
        for step in STEPS:
            for side in SIDES:
                company.die(Death(step, side, times=chance.randrange(1, 4)))
        for side in SIDES:
            company.die(Death("store", side, times=chance.randrange(1, 4), target="self"))
        passing: list[Victim] = ["member", "source"]
        for _ in range(13):
            company.kill(*chance.choices(passing, k=3), chance.choice(get_args(Victim)))
        company.finish()
