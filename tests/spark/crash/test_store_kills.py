"""A task that writes to a store holds what an oracle says, whoever is killed: also the store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest

from headrace.testing.crash import Child, chosen_seed
from tests.spark.crash.crashing_task import CrashingTask, Victim
from tests.spark.crash.death import SIDES, Death, Step
from tests.spark.crash.outputs import StoreKindName, create_output_store

STORE = """
from headrace.stores.service.store_access import open_store
store = open_store(path)
"""
KINDS: tuple[StoreKindName, ...] = get_args(StoreKindName)
STEPS: tuple[Step, ...] = ("stage", "commit")


def store_process(kind: StoreKindName, folder: Path) -> Child:
    """Start a process that has the store open before any other."""
    create_output_store(kind, folder / "store")
    child = Child(STORE, path=folder / "store")
    child.run("None")
    return child


# proves G14
@pytest.mark.parametrize("kind", ["timeseries", pytest.param("vectors", marks=pytest.mark.deep)])
def test_a_store_holds_every_row_once_whoever_is_killed(
    tmp_path: Path, kind: StoreKindName
) -> None:
    with (
        store_process(kind, tmp_path) as store,
        CrashingTask(tmp_path, chosen_seed(default=1), kind) as crashing,
    ):
        with crashing.driver() as run:
            crashing.goes_on(1)
            store.kill()
            crashing.goes_on(2)
            run.kill("jvm")
        crashing.die(Death("commit", "after"))
        crashing.finish()


# proves G14
@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kill_of_a_store_loses_or_repeats_a_row(tmp_path: Path, kind: StoreKindName) -> None:
    seed = chosen_seed()
    chance = random.Random(seed)
    victims: tuple[Victim, ...] = get_args(Victim)
    store = store_process(kind, tmp_path)
    with CrashingTask(tmp_path, seed, kind) as crashing:
        for step in STEPS:
            for side in SIDES:
                with store, crashing.driver():
                    crashing.goes_on(chance.randrange(1, 4))
                    store.kill()
                    crashing.goes_on(2)
                crashing.die(Death(step, side, times=chance.randrange(1, 4)))
                store = store_process(kind, tmp_path)
        store.__exit__()
        for victim in victims:
            crashing.kill("source", victim)
        crashing.finish()
