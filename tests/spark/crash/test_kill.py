"""`kill -9` of every process that a task on Spark has, while transactions flow."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import get_args

import pytest

from headrace.testing.crash import chosen_seed
from tests.spark.crash.crashing_task import CrashingTask, Victim
from tests.spark.crash.death import SIDES, STEPS, Death
from tests.spark.crash.outputs import Kind

KINDS: tuple[Kind, ...] = get_args(Kind)
OWNER = re.compile("journals/|owner|transaction")
"""In an error that comes from the loss of the owner."""
GOES_ON_WITHOUT: list[Victim] = ["member", "source"]


# proves G14
def test_what_a_batch_gives_is_applied_once_whoever_is_killed(tmp_path: Path) -> None:
    with CrashingTask(tmp_path, chosen_seed(default=1)) as crashing:
        crashing.die(Death("store", "after"))
        crashing.die(Death("commit", "before"))
        crashing.die(Death("commit", "after", times=2))
        crashing.kill("source", "member", "owner", "jvm")
        crashing.finish()


# proves G14
@pytest.mark.parametrize(
    ("kind", "owners"),
    [("collection", 2), *(pytest.param(kind, 20, marks=pytest.mark.deep) for kind in KINDS)],
)
def test_a_task_is_not_started_again_because_the_owner_of_the_journals_dies(
    tmp_path: Path, kind: Kind, owners: int
) -> None:
    with (
        CrashingTask(tmp_path, chosen_seed(default=1), kind) as crashing,
        crashing.driver(shards=2) as run,
    ):
        crashing.goes_on(1)
        assert crashing.kill_owners(owners) >= 1
        # A busy machine may make Spark fail.
        assert not [each for each in run.failures if OWNER.search(each)]
        crashing.finish(run)


# proves G14
@pytest.mark.deep
def test_files_have_every_row_once_whoever_is_killed(tmp_path: Path) -> None:
    with CrashingTask(tmp_path, chosen_seed(default=1), "parquet") as crashing:
        crashing.die(Death("commit", "before"))
        crashing.die(Death("commit", "after", times=2))
        crashing.finish()


# proves G14
@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kill_of_many_loses_or_repeats_a_document(tmp_path: Path, kind: Kind) -> None:
    """Of a collection more than 60, and half as many of the other sinks."""
    seed = chosen_seed()
    chance = random.Random(seed)
    with CrashingTask(tmp_path, seed, kind) as crashing:
        for step in STEPS:
            for side in SIDES:
                # The first time that anything is cleared is when a task is opened.
                least = 2 if step == "clear" else 1
                crashing.die(Death(step, side, times=chance.randrange(least, 4)))
        for side in SIDES:
            crashing.die(Death("store", side, times=chance.randrange(1, 4), target="self"))
        crashing.kill("owner")
        last: tuple[Victim, ...] = get_args(Victim)
        for n in range(13 if kind == "collection" else 5):
            crashing.kill(*chance.choices(GOES_ON_WITHOUT, k=3), last[n % len(last)])
        crashing.finish()
