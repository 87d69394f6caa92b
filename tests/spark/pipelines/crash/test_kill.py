"""`kill -9` of the processes that a paid pipeline has on Spark, at random points."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.testing.crash import chosen_seed
from tests.spark.pipelines.crash.crashing_pipeline import CrashingPipeline, Victim

LAST: tuple[Victim, ...] = ("driver", "jvm")
"""After them another driver is started."""


# proves G15, G17
@pytest.mark.parametrize(
    ("honours_keys", "victims"),
    [(False, ("worker", "driver")), (True, ("worker", "jvm"))],
)
def test_a_killed_pipeline_loses_nothing_and_pays_for_what_was_in_doubt_at_most(
    tmp_path: Path, honours_keys: bool, victims: tuple[Victim, ...]
) -> None:
    seed = chosen_seed(default=1)
    with CrashingPipeline(tmp_path, seed, 150, honours_keys) as crashing:
        assert crashing.kill(*victims)
        crashing.finish()
        print(crashing.check())


# proves G15, G17
@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("honours_keys", [False, True])
def test_no_kill_of_many_loses_or_repeats_a_row(tmp_path: Path, honours_keys: bool) -> None:
    """Of at least 50, one in six is of the driver or the JVM. A job that is done is followed."""
    seed = chosen_seed()
    chance = random.Random(seed)
    kills = 0
    while kills < 50:
        job = tmp_path / f"job-{kills}"
        with CrashingPipeline(job, chance.getrandbits(32), 500, honours_keys) as crashing:
            is_left = True
            while is_left:
                first: list[Victim] = ["worker"] * chance.randrange(2, 9)
                is_left = crashing.kill(*first, chance.choice(LAST))
            print(figures := crashing.check())
            kills += figures.kills.total()
